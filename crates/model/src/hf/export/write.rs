//! Writing safetensors files.

use super::plan::{Content, Tensor, Values};
use crate::ModelError;
use half::{bf16, f16};
use serde_json::{Map, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Number type of an exported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// The upper 16 bits of f32, rounded to nearest, ties to even.
    BF16,
    /// IEEE half precision, rounded the same way; at most 65504.
    F16,
}

impl Dtype {
    /// Its name in `config.json`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::BF16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// Its name in a safetensors file.
    fn tag(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::BF16 => "BF16",
            Self::F16 => "F16",
        }
    }

    /// Bytes per number.
    pub(super) fn size(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::BF16 | Self::F16 => 2,
        }
    }

    fn write(self, values: &[f32], file: &mut impl Write) -> std::io::Result<()> {
        values.iter().try_for_each(|value| match self {
            Self::F32 => file.write_all(&value.to_le_bytes()),
            Self::BF16 => file.write_all(&bf16::from_f32(*value).to_le_bytes()),
            Self::F16 => file.write_all(&f16::from_f32(*value).to_le_bytes()),
        })
    }

    /// Whether a finite number becomes infinite in this type.
    fn overflows(self, value: f32) -> bool {
        value.is_finite()
            && match self {
                Self::F32 => false,
                Self::BF16 => bf16::from_f32(value).is_infinite(),
                Self::F16 => f16::from_f32(value).is_infinite(),
            }
    }
}

/// Writes a safetensors file: the length of the JSON header in 8 bytes, the header, then the tensors.
pub fn write_shard(path: &Path, tensors: &[Tensor], values: &mut Values<'_>) -> Result<(), ModelError> {
    // Wide types first, so that each tensor starts at a multiple of its element size.
    let mut tensors: Vec<&Tensor> = tensors.iter().collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
    let io = |source| ModelError::Write { path: path.into(), source };
    let mut file = BufWriter::new(File::create(path).map_err(io)?);
    let header = header(&tensors);
    file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&header)).map_err(io)?;
    for tensor in tensors {
        let values = values.of(tensor)?;
        if let Some(value) = values.iter().find(|value| tensor.dtype.overflows(**value)) {
            let path = match &tensor.content {
                Content::Zeros => unreachable!("0 fits"),
                Content::Same { path } | Content::Transposed { path, .. } => path.clone(),
            };
            let remedy = match tensor.dtype {
                Dtype::F16 => "fp16: export as fp32 or bf16",
                Dtype::F32 | Dtype::BF16 => "bf16: export as fp32",
            };
            let reason = format!("{value:e} is too large for {remedy}");
            return Err(ModelError::Parameter { path, reason });
        }
        tensor.dtype.write(&values, &mut file).map_err(io)?;
    }
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)
}

/// The header, padded with spaces to a multiple of 8 bytes.
fn header(tensors: &[&Tensor]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let entry = json!({"dtype": tensor.dtype.tag(), "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut text = serde_json::to_vec(&header).expect("JSON has a text");
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}
