//! What a call computes, and the time that it takes on a device.

use crate::Device;

/// Matrix products `[rows, inner] x [inner, columns]` of one shape, and those of their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    /// Rows of the activations, for each of `count` matrices.
    pub rows: f64,
    /// Rows of the matrix.
    pub inner: f64,
    /// Columns of the matrix.
    pub columns: f64,
    /// Number of matrices: the experts of a rank.
    pub count: f64,
}

/// What one call computes for one micro-batch on one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Work {
    /// Products with parameters.
    pub products: Vec<Product>,
    /// Floating-point operations of attention in the forward, over visible keys only.
    pub attention: f64,
    /// Bytes that the forward keeps for the backward, a measure of its elementwise operations.
    pub kept: f64,
    /// Operations that the forward starts.
    pub launches: f64,
    /// Whether factors have 16 bits.
    pub half: bool,
    /// Number of logits.
    pub logits: f64,
    /// Bytes that are moved besides, in the forward and in the backward: rows that ranks exchange are put in order, and
    /// parts of attention are merged.
    pub copied: [f64; 2],
    /// Whether the forward also computes the gradients, as that of a loss does which does not keep its logits.
    pub gradients_in_forward: bool,
}

/// A pass over a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The output.
    Forward,
    /// The output again.
    Recompute,
    /// The gradient of the input.
    Input,
    /// The gradients of the weights.
    Weights,
}

impl Product {
    fn flops(&self) -> f64 {
        2.0 * self.rows * self.inner * self.columns * self.count
    }

    /// Returns the contracted dimension of a pass: `y = x w`, `dx = dy w^T`, `dw = x^T dy`.
    fn contracted(&self, pass: Pass) -> f64 {
        match pass {
            Pass::Forward | Pass::Recompute => self.inner,
            Pass::Input => self.columns,
            Pass::Weights => self.rows,
        }
    }
}

impl Work {
    /// Returns the floating-point operations of a forward.
    pub fn flops(&self) -> f64 {
        self.products.iter().map(Product::flops).sum::<f64>() + self.attention
    }

    /// Returns the seconds of a pass on a device that computes nothing else.
    pub fn seconds(&self, pass: Pass, device: &Device) -> f64 {
        let launch = device.efficiency.launch;
        match pass {
            Pass::Forward if self.gradients_in_forward => {
                let passes = [Pass::Forward, Pass::Input, Pass::Weights];
                passes.map(|pass| self.rooflines(pass, device)).iter().sum::<f64>() + self.launches * launch
            }
            // They are only scaled.
            _ if self.gradients_in_forward => 2.0 * launch,
            Pass::Forward | Pass::Input => self.rooflines(pass, device) + self.launches * launch,
            Pass::Recompute => {
                let part = device.efficiency.recomputed;
                part * self.rooflines(Pass::Forward, device) + self.launches * launch
            }
            Pass::Weights => self.rooflines(pass, device) + self.products.len() as f64 * launch,
        }
    }

    /// Returns the seconds of attention in a pass.
    pub fn attention_seconds(&self, pass: Pass, device: &Device) -> f64 {
        let (rates, peak) = (&device.efficiency, self.peak(device));
        match pass {
            Pass::Forward | Pass::Recompute => self.attention / (peak * rates.attention_forward),
            Pass::Input => 2.0 * self.attention / (peak * rates.attention_backward),
            Pass::Weights => 0.0,
        }
    }

    fn peak(&self, device: &Device) -> f64 {
        if self.half { device.peak.bf16 } else { device.peak.fp32 }
    }

    /// Returns the seconds of a pass without launches.
    fn rooflines(&self, pass: Pass, device: &Device) -> f64 {
        let rates = &device.efficiency;
        let product = |product: &Product| {
            let contracted = product.contracted(pass);
            if contracted == 0.0 {
                return 0.0;
            }
            let grouped = if product.count > 1.0 { rates.grouped_product } else { 1.0 };
            let aligned = if self.half && product.columns % 8.0 != 0.0 { rates.unaligned } else { 1.0 };
            let reached = rates.product * grouped * aligned * contracted / (contracted + rates.product_half_k);
            product.flops() / (self.peak(device) * reached)
        };
        let products = self.products.iter().map(product).sum::<f64>();
        // A forward writes what a backward reads; a backward moves about twice as much.
        let bytes = self.kept * rates.elementwise_traffic + self.logits * rates.logit_traffic;
        let [forward, backward] = self.copied;
        let bytes = match pass {
            Pass::Forward | Pass::Recompute => bytes / 3.0 + forward,
            Pass::Input => 2.0 * bytes / 3.0 + backward,
            Pass::Weights => 0.0,
        };
        products + self.attention_seconds(pass, device) + bytes / (device.memory_bandwidth * rates.memory)
    }
}
