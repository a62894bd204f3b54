//! URLs of places in stores.

use crate::StoreError;
use std::env;
use std::ffi::OsString;

/// The store that a URL names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    S3,
    Google,
    Azure,
    /// A folder of this machine.
    Local,
}

/// A URL in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    pub scheme: Scheme,
    /// The bucket or container; empty for a folder.
    pub bucket: &'a str,
    /// What precedes all names, without slashes at its ends; for a folder its path without the first slash.
    pub prefix: &'a str,
}

/// Whether a text is meant as a URL rather than a path.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| scheme.chars().all(|c| c.is_ascii_alphanumeric()))
}

/// Whether a text is the URL of a store, rather than a path or another URL.
pub fn is_of_store(text: &str) -> bool {
    ["s3://", "gs://", "az://", "file://"].iter().any(|scheme| text.starts_with(scheme))
}

/// The environment variables that are set with settings and credentials of stores.
pub fn variables() -> impl Iterator<Item = OsString> {
    let is_of_store = |name: &OsString| {
        ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
    };
    env::vars_os().map(|(name, _)| name).filter(is_of_store)
}

/// Checks a URL without any request.
///
/// # Errors
/// If it names no place in a store, or if this crate was built without stores.
pub fn check(url: &str) -> Result<(), StoreError> {
    parse(url)?;
    match cfg!(feature = "cloud") {
        true => Ok(()),
        false => Err(StoreError::NotBuilt { url: url.into() }),
    }
}

pub(crate) fn parse(url: &str) -> Result<Place<'_>, StoreError> {
    let wrong = |problem: &str| Err(StoreError::Url { url: url.into(), problem: problem.into() });
    let Some((scheme, rest)) = url.split_once("://") else { return wrong("it has no scheme") };
    if rest.contains(['?', '#']) {
        return wrong("it has a query or a fragment");
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_matches('/');
    let scheme = match scheme {
        "s3" => Scheme::S3,
        "gs" => Scheme::Google,
        "az" => Scheme::Azure,
        "file" if !bucket.is_empty() => return wrong("the path must be absolute"),
        "file" if prefix.is_empty() => return wrong("it names no folder"),
        "file" => return Ok(Place { scheme: Scheme::Local, bucket, prefix }),
        "http" | "https" => return wrong("the address of a server goes into AWS_ENDPOINT_URL"),
        _ => return wrong("its scheme is unknown"),
    };
    match bucket {
        "" => wrong("it names no bucket"),
        _ if prefix.split('/').any(|part| ["", ".", ".."].contains(&part)) && !prefix.is_empty() => {
            wrong("its path has an empty part, `.` or `..`")
        }
        _ => Ok(Place { scheme, bucket, prefix }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_store_a_bucket_and_a_prefix_and_others_are_told_what_to_give() {
        let place = |scheme, bucket, prefix| Some(Place { scheme, bucket, prefix });
        assert_eq!(parse("s3://b/runs/mine/").ok(), place(Scheme::S3, "b", "runs/mine"));
        assert_eq!(parse("gs://b").ok(), place(Scheme::Google, "b", ""));
        assert_eq!(parse("az://c/x").ok(), place(Scheme::Azure, "c", "x"));
        assert_eq!(parse("file:///mnt/x").ok(), place(Scheme::Local, "", "mnt/x"));
        for (url, problem) in [
            ("s3:///x", "no bucket"),
            ("s3://b/../x", "`..`"),
            ("s3://b/x?y", "query"),
            ("file://mnt/x", "absolute"),
            ("file:///", "no folder"),
            ("https://host/b", "AWS_ENDPOINT_URL"),
            ("ftp://b/x", "unknown"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("give s3://BUCKET/PREFIX"), "{error}");
        }
        assert!(is_of_store("gs://b") && !is_of_store("https://b") && !is_of_store("s3/b"));
        assert!(is_url("s3://b") && !is_url("runs/a") && !is_url("./a/b://c"));
    }
}
