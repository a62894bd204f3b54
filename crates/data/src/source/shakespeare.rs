//! The tiny Shakespeare corpus of char-rnn, 1 MB, which is built into Kiln.

use std::io::Read;

use flate2::read::GzDecoder;

/// `data/tinyshakespeare/input.txt` of github.com/karpathy/char-rnn.
const TEXT: &[u8] = include_bytes!("tinyshakespeare.txt.gz");

/// The whole text.
pub fn load() -> String {
    let mut text = String::new();
    GzDecoder::new(TEXT).read_to_string(&mut text).expect("the build has put in the whole file");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_text_is_that_of_char_rnn() {
        let digest: String = Sha256::digest(load()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed");
    }
}
