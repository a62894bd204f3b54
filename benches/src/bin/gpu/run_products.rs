//! Measures the grouped product and its two gradients, each kernel by itself.

use crate::cases::{ProductCase, Sizes};
use crate::numbers::{Numbers, ints};
use crate::report::{Record, Report, dtype_name};
use crate::timer::seconds;
use burn::tensor::{Device, Tensor};
use moe::kernels::grouped_gemm::{Tier, force_tier, grouped_gemm, rows_gradient, weight_gradient};

const X: Numbers = Numbers(91);
const WEIGHT: Numbers = Numbers(92);
const D_Y: Numbers = Numbers(93);

/// Measures a tier.
pub fn measure(device: &Device, sizes: &Sizes, tier: Tier, report: &mut Report) {
    force_tier(Some(tier));
    if sizes.smoke && tier != Tier::Simt {
        let why = "all shapes but the first: seconds each on a CPU".into();
        report.missing(format!("grouped_gemm {tier}"), why, false);
        of_model(device, sizes, tier, &ProductCase::of(sizes.models[0])[..1], report);
    } else {
        sizes.models.iter().for_each(|model| of_model(device, sizes, tier, &ProductCase::of(*model), report));
    }
    force_tier(None);
}

fn of_model(device: &Device, sizes: &Sizes, tier: Tier, cases: &[ProductCase], report: &mut Report) {
    let (model, dtype) = (cases[0].model, report.dtype());
    let (e, p, q) = (model.local_experts(), model.d, model.h);
    let weight_epq = WEIGHT.tensor::<3>([e, p, q], 1.0, dtype, device);
    for case in cases {
        let r = case.rows;
        let x_rp = X.tensor::<2>([r, p], 1.0, dtype, device);
        let d_y_rq = D_Y.tensor::<2>([r, q], 1.0, dtype, device);
        let expert_offsets = ints(&case.expert_offsets, [e + 1], device);
        let mut record = |op: &str, time| {
            let record = Record {
                group: "grouped_gemm",
                op: op.into(),
                tier: tier.to_string(),
                shape: model.name,
                rows: r,
                skew: format!("{:?}", case.skew).to_lowercase(),
                dtype: dtype_name(dtype).into(),
                seconds: 0.0,
                flops: case.flops(),
                bytes: 0.0,
            };
            report.measured(record, time);
        };
        let forward = || grouped_gemm(x_rp.clone(), weight_epq.clone(), &expert_offsets);
        record(
            "forward",
            seconds(device, sizes, forward, |y| {
                case.check_rows(y, |row, expert, j| {
                    (0..p).map(|i| (X.at(row * p + i), WEIGHT.at((expert * p + i) * q + j))).collect()
                })
            }),
        );
        let d_x = || rows_gradient(d_y_rq.clone(), weight_epq.clone(), &expert_offsets);
        record(
            "dx",
            seconds(device, sizes, d_x, |d_x| {
                case.check_rows(d_x, |row, expert, i| {
                    (0..q).map(|j| (D_Y.at(row * q + j), WEIGHT.at((expert * p + i) * q + j))).collect()
                })
            }),
        );
        let d_weight = || weight_gradient(x_rp.clone(), d_y_rq.clone(), &expert_offsets);
        record("dW", seconds(device, sizes, d_weight, |d_weight| case.check_matrices(d_weight)));
    }
}

impl ProductCase {
    fn rows_of(&self, expert: usize) -> std::ops::Range<usize> {
        self.expert_offsets[expert] as usize..self.expert_offsets[expert + 1] as usize
    }

    /// The first and the last expert with rows.
    fn ends(&self) -> impl Iterator<Item = usize> {
        let with_rows = |expert: &usize| !self.rows_of(*expert).is_empty();
        let first = (0..self.model.local_experts()).find(with_rows);
        first.into_iter().chain((0..self.model.local_experts()).rev().find(with_rows))
    }

    /// Compares some numbers of some rows with sums of the `terms` of (row, expert, column).
    fn check_rows(
        &self,
        found: Tensor<2>,
        terms: impl Fn(usize, usize, usize) -> Vec<(f32, f32)>,
    ) -> Result<(), String> {
        for expert in self.ends() {
            let rows = self.rows_of(expert);
            for row in [rows.start, rows.end - 1] {
                let found: Vec<f32> = found.clone().slice(row..row + 1).into_data().iter::<f32>().collect();
                for j in places(found.len()) {
                    compare(found[j], terms(row, expert, j)).map_err(|why| format!("row {row}, column {j}: {why}"))?;
                }
            }
        }
        Ok(())
    }

    fn check_matrices(&self, found: Tensor<3>) -> Result<(), String> {
        let (p, q) = (self.model.d, self.model.h);
        for expert in self.ends() {
            for i in places(p) {
                let found = found.clone().slice([expert..expert + 1, i..i + 1]).into_data();
                let found: Vec<f32> = found.iter::<f32>().collect();
                for j in places(q) {
                    let terms = self.rows_of(expert).map(|row| (X.at(row * p + i), D_Y.at(row * q + j))).collect();
                    compare(found[j], terms).map_err(|why| format!("dW[{expert}, {i}, {j}]: {why}"))?;
                }
            }
        }
        Ok(())
    }
}

fn places(len: usize) -> [usize; 3] {
    [0, len / 2 + 1, len - 1]
}

/// Checks that `found` is the sum of products, up to rounding to bf16 and summing in f32.
fn compare(found: f32, terms: Vec<(f32, f32)>) -> Result<(), String> {
    let products = || terms.iter().map(|(a, b)| f64::from(*a) * f64::from(*b));
    let (sum, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
    let right = (f64::from(found) - sum).abs() <= sum.abs() / 128.0 + size * 1e-5;
    if right { Ok(()) } else { Err(format!("{found}, not {sum}")) }
}
