//! The vocabulary of data without a known tokenizer.

use crate::format::count;
use data::{DataError, Dataset};

/// Vocabularies are rounded up to a multiple of this. Matrix products are then faster, and tokens that happen not to
/// occur in the data, such as the last of GPT-2's 50,257, still fit.
const MULTIPLE: usize = 64;

/// The vocabulary size, and a line that reports it: the largest token plus 1, rounded up. Returns `None` if there are
/// no tokens.
///
/// # Errors
/// If a token file can no longer be read.
pub(crate) fn of_tokens(dataset: &Dataset, progress: bool) -> Result<Option<(usize, String)>, DataError> {
    let largest = dataset.largest_token(progress)?;
    Ok(largest.map(|largest| {
        let size = rounded(largest as usize + 1);
        let line = format!(
            "model.vocab_size is set to {}: the largest token of the data is {largest}, and no tokenizer is given",
            count(size, "token")
        );
        (size, line)
    }))
}

fn rounded(tokens: usize) -> usize {
    tokens.next_multiple_of(MULTIPLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_holds_the_largest_token_and_is_a_multiple_of_64() {
        assert_eq!([1, 64, 65, 50257].map(rounded), [64, 64, 128, 50304]);
        let tokens = (0..40).map(|i| if i == 39 { 500 } else { i }).collect();
        let dataset = Dataset::new(tokens, 1).unwrap();
        let (size, line) = of_tokens(&dataset, false).unwrap().unwrap();
        assert_eq!(size, 512);
        assert!(
            line.starts_with("model.vocab_size is set to 512 tokens: the largest token of the data is 500"),
            "{line}"
        );
    }
}
