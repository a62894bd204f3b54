//! Linear layers on devices: products that Burn computes, followed by the operations that Burn's fusion combines into
//! one kernel.

use super::{Again, LinearOps, ProductOps};
use crate::cube::launch::part_or_empty;
use crate::cube::{product, product_into};
use crate::gelu::GeluOps;
use burn::backend::TensorMetadata;
use burn::backend::fusion::{Fusion, FusionBackend};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

impl ProductOps for CubeBackend {
    fn fused_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = a.dtype;
        product(a, b, dtype)
    }

    fn fused_product_into(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        flat: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self> {
        let ([rows, _], [_, columns]) = (a.shape().dims(), b.shape().dims());
        let out = part_or_empty(&flat, start, [rows, columns], a.dtype);
        product_into(a, b, out.clone());
        out
    }
}

/// The layers of a backend that has products and GELU. The tape uses `again`.
macro_rules! composed_layers {
    ($backend:ty $(, $b:ident: $first:ident + $second:ident + $third:ident)?) => {
        impl$(<$b: $first + $second + $third>)? LinearOps for $backend {
            fn fused_linear(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                transposed: bool,
                _: Option<Again>,
            ) -> FloatTensor<Self> {
                composed::<Self>(x, weight, bias, transposed)
            }

            fn fused_linear_gelu(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                _: Option<Again>,
            ) -> (FloatTensor<Self>, FloatTensor<Self>) {
                let pre = composed::<Self>(x, weight, bias, false);
                (Self::fused_gelu(pre.clone()), pre)
            }

            fn fused_linear_add(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                residual: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                Self::float_add(residual, composed::<Self>(x, weight, bias, false))
            }
        }
    };
}

composed_layers!(CubeBackend);
composed_layers!(Fusion<B>, B: FusionBackend + ProductOps + GeluOps);

/// A product, plus the bias, composed of the backend's operations.
fn composed<B: ProductOps>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    transposed: bool,
) -> FloatTensor<B> {
    let y = B::fused_product(x, if transposed { B::float_transpose(weight) } else { weight });
    match bias.shape().num_elements() {
        0 => y,
        to => B::float_add(y, B::float_reshape(bias, [1, to].into())),
    }
}
