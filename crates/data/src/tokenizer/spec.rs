//! The user's choice of a tokenizer.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Tokenizer;
use crate::DataError;

/// How text becomes tokens: `byte`, `char`, `gpt2`, or the path of a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum TokenizerSpec {
    /// One token per byte: 256 of them, whatever the text.
    #[default]
    Byte,
    /// One token per distinct character of the corpus, ordered by code point.
    Char,
    /// GPT-2's tokenizer, in the folder `$KILN_GPT2`, else `gpt2`.
    Gpt2,
    /// A Hugging Face `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    Path(PathBuf),
}

impl TokenizerSpec {
    /// Opens the tokenizer. None for [`Char`](Self::Char), which depends on a corpus.
    ///
    /// # Errors
    /// See [`Tokenizer::open`].
    pub fn open(&self) -> Result<Option<Tokenizer>, DataError> {
        match self {
            Self::Byte => Ok(Some(Tokenizer::byte())),
            Self::Char => Ok(None),
            Self::Gpt2 => {
                let set = std::env::var_os("KILN_GPT2").filter(|folder| !folder.is_empty());
                open_gpt2(&set.map_or_else(|| PathBuf::from("gpt2"), PathBuf::from)).map(Some)
            }
            Self::Path(path) => Tokenizer::open(path).map(Some),
        }
    }
}

fn open_gpt2(folder: &Path) -> Result<Tokenizer, DataError> {
    let found = ["tokenizer.json", "vocab.json"].iter().any(|name| folder.join(name).is_file());
    if !found {
        let problem = "put GPT-2's tokenizer.json, or its vocab.json and merges.txt, into this folder (`hf download \
                       openai-community/gpt2 tokenizer.json --local-dir gpt2`), or name the folder that has them with \
                       KILN_GPT2=FOLDER";
        return Err(DataError::NoTokenizer { path: folder.into(), problem: problem.into() });
    }
    Tokenizer::open(folder)
}

impl From<String> for TokenizerSpec {
    fn from(name: String) -> Self {
        match &name[..] {
            "byte" => Self::Byte,
            "char" => Self::Char,
            "gpt2" => Self::Gpt2,
            _ => Self::Path(name.into()),
        }
    }
}

impl From<TokenizerSpec> for String {
    fn from(spec: TokenizerSpec) -> Self {
        spec.to_string()
    }
}

impl FromStr for TokenizerSpec {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(Self::from(name.to_string()))
    }
}

impl fmt::Display for TokenizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte => f.write_str("byte"),
            Self::Char => f.write_str("char"),
            Self::Gpt2 => f.write_str("gpt2"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_its_name() {
        for name in ["byte", "char", "gpt2", "some/folder", "./gpt2"] {
            let Ok(spec) = name.parse::<TokenizerSpec>();
            assert_eq!(spec.to_string(), name);
            assert_eq!(serde_json::from_str::<TokenizerSpec>(&serde_json::to_string(&spec).unwrap()).unwrap(), spec);
            assert_eq!(matches!(spec, TokenizerSpec::Path(_)), name.contains('/'));
        }
    }

    #[test]
    fn without_gpt2_the_error_says_what_to_put_where() {
        let folder = tempfile::tempdir().unwrap();
        let message = open_gpt2(folder.path()).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json, or its vocab.json and merges.txt"), "{message}");
        assert!(message.contains("KILN_GPT2"), "{message}");
    }
}
