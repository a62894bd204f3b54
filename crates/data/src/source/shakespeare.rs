//! The tiny Shakespeare of char-rnn, 1 MB, downloaded once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::{DataError, cache};

const URL: &str = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt";
const SHA256: &str = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";
const MAX_BYTES: u64 = 16 << 20;

/// The path of the text, which is downloaded if the cache does not have it.
pub fn find(cache: &Path) -> Result<PathBuf, DataError> {
    let path = cache.join("tinyshakespeare.txt");
    if path.is_file() {
        let found = sha256(&fs::read(&path).map_err(|error| DataError::read(&path, error))?);
        return if found == SHA256 {
            Ok(path)
        } else {
            Err(DataError::Checksum { url: URL, path, found, expected: SHA256 })
        };
    }
    let bytes = download().map_err(|problem| DataError::Download { url: URL, path: path.clone(), problem })?;
    cache::write_file(&path, &bytes)?;
    Ok(path)
}

/// The text from the network, if it is the right one.
fn download() -> Result<Vec<u8>, String> {
    let failed = |error: ureq::Error| error.to_string();
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(60))).build().into();
    let mut response = agent.get(URL).call().map_err(failed)?;
    let bytes = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec().map_err(failed)?;
    match sha256(&bytes) {
        found if found == SHA256 => Ok(bytes),
        found => Err(format!("what came has the SHA-256 {found}, not {SHA256}")),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_text_that_is_another_is_an_error_with_the_remedy() {
        let cache = tempfile::tempdir().unwrap();
        fs::write(cache.path().join("tinyshakespeare.txt"), "not Shakespeare").unwrap();
        let message = find(cache.path()).unwrap_err().to_string();
        assert!(message.contains("tinyshakespeare.txt has the SHA-256") && message.contains(URL), "{message}");
    }
}
