//! fp8 weights in the format DeepSeek publishes: `weight = fp8 * scale_inv[row / 128, column / 128]`.

/// The value of each byte in e4m3fn (arXiv 2209.05433): a sign, 4 exponent bits with bias 7, 3 mantissa bits, no
/// infinities; 0x7f and 0xff are NaN.
const E4M3: [f32; 256] = table();

const fn table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = decode(byte as u32);
        byte += 1;
    }
    table
}

const fn decode(byte: u32) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, byte & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, mantissa) => mantissa as f32 / 512.0, // 2^-6 * mantissa / 8
        // As f32 bits: exponent with bias 127, mantissa in the upper 3 of 23 bits.
        (exponent, mantissa) => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Decodes e4m3fn bytes.
pub fn decoded(bytes: &[u8]) -> Vec<f32> {
    bytes.iter().map(|byte| E4M3[usize::from(*byte)]).collect()
}

/// Multiplies a matrix `[rows, columns]` by one scale per block of `block` rows and columns. Blocks at the edges may be
/// smaller.
pub fn scale(values: &mut [f32], columns: usize, scales: &[f32], block: [usize; 2]) {
    if columns == 0 {
        return;
    }
    let per_row = columns.div_ceil(block[1]);
    for (row, values) in values.chunks_exact_mut(columns).enumerate() {
        let scales = &scales[row / block[0] * per_row..][..per_row];
        for (values, scale) in values.chunks_mut(block[1]).zip(scales) {
            values.iter_mut().for_each(|value| *value *= scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_numbers_of_the_format() {
        let known =
            [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x07, 7.0 / 512.0), (0x08, 1.0 / 64.0), (0x38, 1.0), (0x7e, 448.0)];
        for (byte, value) in known {
            assert_eq!(decoded(&[byte, byte | 0x80]), [value, -value], "{byte:#x}");
        }
        assert!(decoded(&[0x7f, 0xff]).iter().all(|value| value.is_nan()));
        assert!((0x80..=0xfeu8).zip(0x00..=0x7e).all(|(minus, plus)| decoded(&[minus])[0] == -decoded(&[plus])[0]));
        assert!((0x00..0x7eu8).all(|byte| decoded(&[byte])[0] < decoded(&[byte + 1])[0]), "bytes are in order");
    }

    #[test]
    fn blocks_at_the_edges_are_smaller() {
        let mut values = vec![1.0; 3 * 5];
        scale(&mut values, 5, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 2]);
        assert_eq!(values, [1., 1., 2., 2., 3., 1., 1., 2., 2., 3., 4., 4., 5., 5., 6.]);
    }
}
