//! fp8 files in DeepSeek's published format, against torch's values and transformers' logits of the dequantized
//! weights.

use burn::tensor::{Device, Int, Tensor, TensorData};
use model::ModelError;
use model::hf::{Folder, Pretrained};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use test_kit::{floats, stored_floats, stored_ints, worst};

const NAME: &str = "model.layers.0.mlp.down_proj.weight";

fn reference() -> PathBuf {
    test_kit::reference("deepseek-v3-fp8")
}

#[test]
fn logits_equal_those_of_the_dequantised_weights() {
    let file = fs::read(reference().join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();
    let (ids, shape) = stored_ints(&expected, "tokens");
    let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &Device::flex());

    let model = Pretrained::load(&Folder::open(&reference()).unwrap(), &Device::flex()).unwrap();
    let worst = worst(&floats(model.logits(tokens_bt)), &stored_floats(&expected, "logits"));
    assert!(worst < 1e-4, "off by {worst:e}");
}

/// A folder with this configuration and these tensors (name, type, shape, bytes).
fn folder(config: &Value, tensors: &[(&str, Dtype, &[usize], &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.to_string(), TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
    let file = serialize(views.collect::<Vec<_>>(), None).unwrap();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn every_byte_is_the_number_that_torch_reads() {
    let bytes: Vec<u8> = (0..=255).collect();
    let scale = f32s(&[1.0]);
    let folder =
        folder(&json!({}), &[("w", Dtype::F8_E4M3, &[16, 16], &bytes), ("w_scale_inv", Dtype::F32, &[1, 1], &scale)]);
    let found = Folder::open(folder.path()).unwrap().tensor("w", &[16, 16]).unwrap();
    let file = fs::read(reference().join("expected.safetensors")).unwrap();
    let expected = stored_floats(&SafeTensors::deserialize(&file).unwrap(), "e4m3");
    for (byte, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{byte:#x} is {found}, not {expected}");
    }
}

#[test]
fn a_block_may_have_another_size() {
    let (bytes, scales) = ([0x38; 6], f32s(&[1.0, 2.0, 3.0, 4.0])); // 0x38 is 1
    let folder = folder(
        &json!({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [1, 2]}}),
        &[("w", Dtype::F8_E4M3, &[2, 3], &bytes), ("w_scale_inv", Dtype::F32, &[2, 2], &scales)],
    );
    assert_eq!(Folder::open(folder.path()).unwrap().tensor("w", &[2, 3]).unwrap(), [1., 1., 2., 3., 3., 4.]);
}

#[test]
fn an_fp8_matrix_without_its_factors_is_an_error_that_names_them() {
    let folder = folder(&json!({}), &[(NAME, Dtype::F8_E4M3, &[2, 2], &[0; 4])]);
    match Folder::open(folder.path()).unwrap().tensor(NAME, &[2, 2]).unwrap_err() {
        ModelError::MissingTensor { name, .. } => assert_eq!(name, format!("{NAME}_scale_inv")),
        other => panic!("{other}"),
    }
}

#[test]
fn factors_of_another_shape_or_type_and_fp8_that_is_no_matrix_are_errors() {
    let (eight, w) = ([0; 8], ("w", Dtype::F8_E4M3, &[2, 2][..], &[0; 4][..]));
    let error = |tensors: &[(&str, Dtype, &[usize], &[u8])], shape: &[usize]| {
        let folder = folder(&json!({}), tensors);
        Folder::open(folder.path()).unwrap().tensor("w", shape).unwrap_err().to_string()
    };
    let shape = error(&[w, ("w_scale_inv", Dtype::F32, &[1, 2], &eight)], &[2, 2]);
    assert!(shape.contains("`w_scale_inv` has shape [1, 2], but config.json makes it [1, 1]"), "{shape}");
    let dtype = error(&[w, ("w_scale_inv", Dtype::BF16, &[1, 1], &eight[..2])], &[2, 2]);
    assert!(dtype.contains("`w_scale_inv` is stored as BF16; scales of fp8 are F32"), "{dtype}");
    let vector = error(&[("w", Dtype::F8_E4M3, &[4], &eight[..4])], &[4]);
    assert!(vector.contains("`w` is fp8, but its shape [4] is not that of a matrix"), "{vector}");
    let f64s = error(&[("w", Dtype::F64, &[1], &eight)], &[1]);
    assert!(f64s.contains("`w` is stored as F64; F32, F16, BF16 and F8_E4M3 can be read"), "{f64s}");
}

#[test]
fn another_quantisation_is_refused() {
    let error = |quantization: Value| {
        let folder = folder(&json!({"quantization_config": quantization}), &[]);
        Folder::open(folder.path()).err().unwrap().to_string()
    };
    assert!(error(json!({"quant_method": "gptq"})).contains("quant_method \"gptq\""));
    assert!(error(json!({"quant_method": "fp8", "fmt": "e5m2"})).contains("fmt \"e5m2\""));
    let block = error(json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [0, 128]}));
    assert!(block.contains("weight_block_size is [0,128], not rows and columns"), "{block}");
}
