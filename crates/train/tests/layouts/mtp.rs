//! Multi-token prediction: the embedding is called twice, and everything after the blocks is on the last stage.

use super::*;

const MTP: &[&str] = &["--set=model.mtp_depth=2", "--set=model.num_hidden_layers=2"];

const MTP_ROWS: &[Row] = &[
    ("tp 2 in full_shard 4", &["gpus=4", "tp=2"]),
    ("full_shard, 3 ranks, four micro-batches", &["gpus=3"]),
    ("block, 3 ranks", &["gpus=3", "strategy=block"]),
    ("pp 3, uneven stages", &["gpus=3", "pp=3", "stages=[1,1,0]"]),
    ("pp 2, zb_v", &["gpus=2", "pp=2", "schedule=zb_v"]),
    ("ep 2 on 6 ranks that share 16 sequences", &["gpus=6", "ep=2", "train.micro_batch_size=null"]),
    ("ep 2, of micro-batches that do not count", &["gpus=2", "ep=2", "train.micro_batch_size=6"]),
    ("pp 2 in 4, zb_v, the same", &["gpus=4", "pp=2", "schedule=zb_v", "train.micro_batch_size=6"]),
    ("pp 2 x ep 2, zero_bubble", &["gpus=4", "pp=2", "ep=2", "schedule=zero_bubble"]),
];

#[test]
fn multi_token_prediction_has_the_losses_of_one_rank_in_every_layout() {
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, V3, MTP].concat(), MTP_ROWS);
}

/// With weight 0, and without losses of their experts, multi-token prediction modules do not change the model by a bit.
#[test]
fn multi_token_prediction_without_weight_has_the_losses_of_a_model_without() {
    let balance = "--set=moe.aux_loss_coef=0";
    let without = train(&[DEEPSEEK, &[balance]].concat(), STEPS);
    let depth = ["--set=model.mtp_depth=1", "--set=train.mtp_loss_coef=0"];
    let with = train(&[DEEPSEEK, &[balance], &depth[..]].concat(), STEPS);
    for key in ["loss", "val_loss"] {
        assert_eq!(values(&with, key), values(&without, key), "{key}");
    }
    let weighted = train(&[DEEPSEEK, &[balance], &depth[..1]].concat(), STEPS);
    assert_ne!(values(&weighted, "loss"), values(&without, "loss"));
    assert!(
        values(&weighted, "aux_loss").into_iter().all(|aux| aux > 0.3 * 2.0),
        "a weighted loss of more than 2 nats"
    );
}
