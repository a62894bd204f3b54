//! Linking: of PTX texts, into one.

use crate::abi::CUlinkState;
use crate::call::{api, out, out_opt, refuse, text};
use crate::contexts::current;
use crate::errors::{Answer, Code};
use crate::handles::Table;
use crate::image::{self, Log};
use crate::say::say_once;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Mutex;

/// A link in progress.
struct Link {
    handle: CUlinkState,
    log: Log,
    texts: Mutex<Vec<String>>,
    /// The result, which stays in place until the link is destroyed.
    result: Mutex<Option<Box<[u8]>>>,
}

fn links() -> &'static Table<Link> {
    static LINKS: Table<Link> = Table::new(Code::INVALID_HANDLE);
    &LINKS
}

fn add(state: CUlinkState, kind: c_uint, bytes: &[u8]) -> Answer {
    let link = links().get(state)?;
    if kind == 4 {
        // Most links name libcudadevrt, and few kernels call it.
        say_once("a link names a library, whose functions are not emulated: a kernel that calls one ends in a fault");
        return Ok(());
    }
    if kind != 1 {
        let what = ["a cubin", "PTX", "a fat binary", "an object", "a library", "NVVM code"];
        let what = what.get(kind as usize).ok_or(Code::INVALID_VALUE)?;
        let why = format!("the link is given {what}, and the emulated driver links PTX text: compile with nvcc -ptx");
        return link.log.fail(Code::NO_BINARY_FOR_GPU, &why);
    }
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = image::check(String::from_utf8_lossy(bytes).into_owned(), link.log)?;
    link.texts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(text);
    Ok(())
}

/// The name that a declaration has: of a function behind the list of what it returns, otherwise of a variable.
fn declared(declaration: &str) -> Option<&str> {
    let after = declaration.trim_start_matches(".extern").trim_start();
    let after = match after.strip_prefix(".func").map(str::trim_start) {
        Some(returns) if returns.starts_with('(') => returns.split_once(')')?.1,
        Some(name) => name,
        None => after,
    };
    let words = after.split(|c: char| !(c.is_ascii_alphanumeric() || "_$.".contains(c)));
    words.filter(|word| !word.is_empty()).find(|word| !word.starts_with(|c: char| c == '.' || c.is_ascii_digit()))
}

/// One text of several: the directives of the module from the first, and no declaration of what another defines.
fn join(texts: &[String]) -> String {
    let [first, rest @ ..] = texts else { return String::new() };
    let directive =
        |line: &&str| ![".version", ".target", ".address_size"].iter().any(|name| line.trim_start().starts_with(name));
    let bodies = rest.iter().flat_map(|text| text.lines().filter(directive));
    let all = first.lines().chain(bodies).collect::<Vec<_>>().join("\n");
    if rest.is_empty() {
        return all;
    }
    // A declaration reaches to its semicolon.
    let mut joined = String::new();
    let mut open = all.as_str();
    while let Some(start) = open.find(".extern") {
        let end = open[start..].find(';').map_or(open.len(), |end| start + end + 1);
        let declaration = &open[start..end];
        let defined = declared(declaration).is_some_and(|name| {
            all.lines().any(|line| {
                line.contains(".visible")
                    && line.split(|c: char| !(c.is_ascii_alphanumeric() || "_$".contains(c))).any(|word| word == name)
            })
        });
        joined.push_str(&open[..start]);
        joined.push_str(if defined { "" } else { declaration });
        open = &open[end..];
    }
    joined + open
}

api! {
    fn cuLinkCreate_v2(count: c_uint, options: *const c_uint, values: *const usize, to: *mut CUlinkState) {
        current()?;
        let log = Log::read(count, options, values)?;
        out(to, links().add(|handle| Link { handle, log, texts: Mutex::default(), result: Mutex::default() }).handle)
    }
    fn cuLinkAddData_v2(
        state: CUlinkState, kind: c_uint, data: *const c_void, size: usize, _name: *const c_char,
        _count: c_uint, _options: *const c_uint, _values: *const usize,
    ) {
        add(state, kind, &crate::call::values(data.cast::<u8>(), size)?)
    }
    fn cuLinkAddFile_v2(
        state: CUlinkState, kind: c_uint, path: *const c_char,
        _count: c_uint, _options: *const c_uint, _values: *const usize,
    ) {
        let path = text(path)?;
        add(state, kind, &std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?)
    }
    fn cuLinkComplete(state: CUlinkState, to: *mut *const c_void, size: *mut usize) {
        let link = links().get(state)?;
        let texts = link.texts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if texts.is_empty() {
            return refuse(Code::INVALID_VALUE, "a link without any input");
        }
        let mut bytes = join(&texts).into_bytes();
        bytes.push(0);
        let mut result = link.result.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let bytes = result.insert(bytes.into_boxed_slice());
        out_opt(size, bytes.len());
        out(to, bytes.as_ptr().cast())
    }
    fn cuLinkDestroy(state: CUlinkState) {
        links().remove(state).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_goes_where_another_text_has_the_definition() {
        let print = ".extern .func (.param .b32 r) print\n(\n.param .b64 p_0\n)\n;\n";
        let caller = format!(
            ".version 8.0\n.target sm_80\n.extern .func f\n(\n.param .b32 f_0\n)\n;\n{print}.extern .shared .align 16 .b8 s[];\n\
             .visible .entry k() {{ ret; }}"
        );
        let callee = ".version 8.0\n.target sm_80\n.visible .func (.param .b32 r) f(\n.param .b32 f_0) { ret; }";
        let joined = join(&[caller, callee.to_owned()]);
        assert_eq!(joined.matches(".version").count(), 1);
        assert_eq!(joined.matches("f_0").count(), 1);
        assert!(joined.contains(print));
        assert!(joined.contains(".extern .shared .align 16 .b8 s[];"));
    }
}
