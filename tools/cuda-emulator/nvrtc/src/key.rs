//! Which programs are kept, and what tells them apart.

use std::path::Path;

/// What a program is made of.
#[derive(Debug, Default)]
pub struct Source {
    /// The text, without the zero at its end.
    pub text: Vec<u8>,
    /// Its name, which messages contain.
    pub name: Vec<u8>,
    /// Whether the program has brought headers or name expressions.
    pub more: bool,
}

/// What tells the program, compiled with `options` by NVRTC `version`, from others. `None` if it is not one to keep: it
/// could depend on files outside `toolkit`, or answers of NVRTC would be missing.
pub fn key(source: &Source, options: &[&[u8]], version: (i32, i32), toolkit: &Path) -> Option<Vec<u8>> {
    let quotes = source.text.split(|byte| *byte == b'\n').any(|line| line.contains(&b'"') && includes(line));
    if source.more || quotes || !options.iter().all(|option| known(option, toolkit)) {
        return None;
    }
    let mut key = format!("NVRTC {}.{}", version.0, version.1).into_bytes();
    for part in options.iter().copied().chain([&*source.name, &*source.text]) {
        key.push(0);
        key.extend(part);
    }
    Some(key)
}

fn includes(line: &[u8]) -> bool {
    line.windows(7).any(|window| window == b"include")
}

fn known(option: &[u8], toolkit: &Path) -> bool {
    let Ok(option) = str::from_utf8(option) else { return false };
    match option.split_once('=') {
        Some(("--gpu-architecture", _)) => true,
        Some(("--include-path", folder)) => Path::new(folder).starts_with(toolkit),
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

    fn of(source: &Source, options: &[&[u8]], version: (i32, i32)) -> Option<Vec<u8>> {
        key(source, options, version, Path::new("/cuda"))
    }

    #[test]
    fn each_part_tells_programs_apart() {
        let named = Source { name: b"n".into(), ..source("a") };
        let keys = [
            of(&source("a"), &OPTIONS, (12, 9)),
            of(&source("b"), &OPTIONS, (12, 9)),
            of(&named, &OPTIONS, (12, 9)),
            of(&source("a"), &OPTIONS[..2], (12, 9)),
            of(&source("a"), &OPTIONS, (12, 8)),
        ];
        for (i, one) in keys.iter().enumerate() {
            assert!(one.is_some(), "program {i} is one to keep");
            assert!(!keys[..i].contains(one), "program {i} has the key of another");
        }
    }

    #[test]
    fn programs_that_depend_on_more_are_not_kept() {
        assert_eq!(of(&Source { more: true, ..source("a") }, &OPTIONS, (12, 9)), None);
        assert_eq!(of(&source("#include \"mine.h\""), &OPTIONS, (12, 9)), None);
        assert_eq!(of(&source("#  include\t\"mine.h\""), &OPTIONS, (12, 9)), None);
        for option in
            ["--include-path=/home/me", "--include-path=/cudas", "--pre-include=mine.h", "-create-pch=a", "-time=-"]
        {
            assert_eq!(of(&source("a"), &[option.as_bytes()], (12, 9)), None, "{option}");
        }
        assert!(of(&source("#include <cuda_fp16.h>\nprintf(\"one\");"), &OPTIONS, (12, 9)).is_some());
    }
}
