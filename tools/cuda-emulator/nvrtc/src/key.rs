//! Which programs are kept, and what tells them apart.

use std::path::{Component, Path};
use std::time::UNIX_EPOCH;

/// What a program is made of.
#[derive(Debug, Default)]
pub struct Source {
    /// The text, without the zero at its end.
    pub text: Vec<u8>,
    /// Its name, which messages contain.
    pub name: Vec<u8>,
    /// Whether the program must not be kept: it has headers, name expressions or a flow callback of its own, or this handle
    /// has compiled it before.
    pub uncacheable: bool,
}

/// What tells the program, compiled with `options` by `compiler`, from others. `None` if it is not one to keep: it could
/// depend on files outside `toolkit`, on the time, or on answers of NVRTC that the store does not have.
pub fn key(source: &Source, options: &[&[u8]], compiler: &str, toolkit: &Path) -> Option<Vec<u8>> {
    let text = str::from_utf8(&source.text).ok()?;
    // A directive may go on after a backslash at the end of a line.
    let refused = ["\\\n", "\\\r", "__DATE__", "__TIME"].iter().any(|part| text.contains(part));
    let plain = text.lines().all(|line| !line.contains("include") || includes_plainly(line));
    if source.uncacheable
        || refused
        || !plain
        || !toolkit.is_absolute()
        || !options.iter().all(|option| known(option, toolkit))
    {
        return None;
    }
    let headers = stamp(&toolkit.join("include/cuda.h"));
    let mut key = format!("format 2, {compiler}, headers {headers}").into_bytes();
    for part in options.iter().copied().chain([&*source.name, &*source.text]) {
        key.push(0);
        key.extend(part);
    }
    Some(key)
}

/// Length and time of a file, which another build of it does not share.
pub fn stamp(file: &Path) -> String {
    let Ok(found) = file.metadata() else { return "unknown".into() };
    let time = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    format!("{} bytes of {} ns", found.len(), time.as_nanos())
}

/// Whether the line is `#include <NAME>` with a name that only an include folder has.
fn includes_plainly(line: &str) -> bool {
    let name = line.trim().strip_prefix('#').and_then(|rest| rest.trim_start().strip_prefix("include"));
    let name = name.and_then(|rest| rest.trim_start().strip_prefix('<')?.strip_suffix('>')).map(Path::new);
    // NVRTC may also look in the working directory.
    name.is_some_and(|name| stays_inside(name) && !name.is_absolute() && !name.exists())
}

fn stays_inside(path: &Path) -> bool {
    path.components().all(|part| part != Component::ParentDir)
}

fn known(option: &[u8], toolkit: &Path) -> bool {
    let Ok(option) = str::from_utf8(option) else { return false };
    match option.split_once('=') {
        Some(("--gpu-architecture", _)) => true,
        Some(("--include-path", folder)) => {
            // Commas may separate several folders.
            let inside = Path::new(folder).starts_with(toolkit) && stays_inside(Path::new(folder));
            inside && !folder.contains(',')
        }
        _ => option == "-lineinfo",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: [&[u8]; 3] = [b"--gpu-architecture=sm_80", b"--include-path=/cuda/include", b"-lineinfo"];

    fn source(text: &str) -> Source {
        Source { text: text.into(), ..Source::default() }
    }

    fn of(source: &Source, options: &[&[u8]], compiler: &str) -> Option<Vec<u8>> {
        key(source, options, compiler, Path::new("/cuda"))
    }

    #[test]
    fn each_part_tells_programs_apart() {
        let named = Source { name: b"n".into(), ..source("a") };
        let keys = [
            of(&source("a"), &OPTIONS, "12.9"),
            of(&source("b"), &OPTIONS, "12.9"),
            of(&named, &OPTIONS, "12.9"),
            of(&source("a"), &OPTIONS[..2], "12.9"),
            of(&source("a"), &OPTIONS, "12.8"),
        ];
        for (i, one) in keys.iter().enumerate() {
            assert!(one.is_some(), "program {i} is one to keep");
            assert!(!keys[..i].contains(one), "program {i} has the key of another");
        }
    }

    #[test]
    fn a_changed_toolkit_has_other_keys() {
        let folder = tempfile::tempdir().unwrap();
        let header = folder.path().join("include/cuda.h");
        std::fs::create_dir(folder.path().join("include")).unwrap();
        let key_with = |text: &str| {
            std::fs::write(&header, text).unwrap();
            key(&source("a"), &[], "12.9", folder.path()).unwrap()
        };
        assert_ne!(key_with("#define CUDA_VERSION 12080"), key_with("#define CUDA_VERSION 12090 //"));
    }

    #[test]
    fn programs_that_depend_on_more_are_not_kept() {
        assert_eq!(of(&Source { uncacheable: true, ..source("a") }, &OPTIONS, "12.9"), None);
        let texts = [
            "#include \"mine.h\"",
            "#  include\t\"mine.h\"",
            "#include </home/me/mine.h>",
            "#include <../mine.h>",
            "#include <Cargo.toml>", // in the working directory of a test
            "#define H \"mine.h\"\n#include H",
            "#include \\\n\"mine.h\"",
            "#if __has_include(<mine.h>)",
            "int x; // __TIMESTAMP__",
        ];
        for text in texts {
            assert_eq!(of(&source(text), &OPTIONS, "12.9"), None, "{text}");
        }
        for folder in ["/home/me", "/cudas", "/cuda/../home/me", "/cuda/include,/home/me"] {
            let option = format!("--include-path={folder}");
            assert_eq!(of(&source("a"), &[option.as_bytes()], "12.9"), None, "{option}");
        }
        for option in ["--pre-include=mine.h", "-create-pch=a", "-time=-", "-DX"] {
            assert_eq!(of(&source("a"), &[option.as_bytes()], "12.9"), None, "{option}");
        }
        assert_eq!(
            key(&source("a"), &[b"--include-path=cuda/include"], "12.9", Path::new("cuda")),
            None,
            "a relative CUDA_PATH"
        );
        let text = "#include <cuda_fp16.h>\n # include <cuda/barrier> \r\nprintf(\"one\\n\");";
        assert!(of(&source(text), &OPTIONS, "12.9").is_some());
    }
}
