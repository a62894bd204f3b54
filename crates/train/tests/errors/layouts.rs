//! Mistakes in the layout of a run over ranks.

use super::{Mistake, answered};

#[test]
fn layouts_that_make_no_sense_are_refused() {
    answered(LAYOUTS);
}

const ROWS_IN_ANOTHER_ORDER: &[u8] = b"
base: preset:gpt2
parallel:
  adaptive:
    - {up_to: 1024, micro_batches: 4, global_batch_size: 8}
    - {up_to: 512, micro_batches: 4, global_batch_size: 8}
";

const LAYOUTS: &[Mistake] = &[
    ("no ranks", &[], "--model gpt2 --gpus 0", &["'0'", "--gpus", "a whole number, 1 or above"]),
    ("no stages", &[], "--model gpt2 --set parallel.pp=0", &["parallel.pp is 0", "at least 1"]),
    (
        "stages that do not divide the ranks",
        &[],
        "--model gpt2 --gpus 4 --set parallel.pp=3",
        &[
            "parallel.pp is 3, which does not divide the 4 ranks",
            "With 4 ranks this size fits: --set parallel.pp=2; or give --gpus 6",
        ],
    ),
    (
        "several sizes that the ranks do not fit",
        &[],
        "--model deepseek --gpus 6 --set parallel.pp=4 --set parallel.tp=2 --set parallel.ep=4",
        &[
            "parallel.pp is 4, which does not divide the 6 ranks",
            "With 6 ranks these sizes fit together: --set parallel.pp=3 --set parallel.ep=2",
        ],
    ),
    (
        "ranks that have become fewer",
        &[],
        "--model gpt2 --gpus 3 --set parallel.pp=2 --set parallel.tp=2 --set parallel.dp_shard=2",
        &[
            "parallel.pp is 2, which does not divide the 3 ranks",
            "--set parallel.pp=1 --set parallel.tp=1",
            "dp_shard=null",
        ],
    ),
    (
        "ranks that have become fewer, of which one size is too many",
        &[],
        "--model gpt2 --gpus 2 --set parallel.pp=2 --set parallel.tp=2",
        &["parallel.tp 2 does not divide the 1 rank of a stage", "With 2 ranks this size fits: --set parallel.tp=1"],
    ),
    (
        "one rank where there were replicas of stages",
        &[],
        "--model deepseek --gpus 1 --strategy hybrid_shard --set parallel.pp=2 --set parallel.tp=2 --set parallel.ep=2",
        &[
            "parallel.pp is 2",
            "With 1 rank these sizes fit together: --set parallel.pp=1 --set parallel.tp=1 --set parallel.ep=1 \
             --set parallel.dp_replicate=1",
        ],
    ),
    (
        "copies that are given, on fewer ranks",
        &[],
        "--model deepseek --gpus 2 --strategy ddp --set parallel.dp_replicate=4 --set parallel.tp=2 --set parallel.ep=4",
        &["With 2 ranks these sizes fit together: --set parallel.ep=2 --set parallel.dp_replicate=null"],
    ),
    (
        "a schedule whose chunks are too many, on fewer ranks",
        &[],
        "--model deepseek --gpus 2 --set parallel.pp=4 --set parallel.schedule=zb_v --set parallel.cp=2",
        &["parallel.pp is 4, which does not divide the 2 ranks", "With 2 ranks this size fits: --set parallel.pp=1"],
    ),
    (
        "more chunks than the model has parts",
        &[],
        "--model gpt2 --gpus 8 --set parallel.pp=8",
        &["parallel.pp 8 x virtual_stages 1 are 8 chunks", "4 blocks beside embedding and head", "fewer stages"],
    ),
    (
        "stages of other blocks than there are",
        &[],
        "--model gpt2 --gpus 2 --set parallel.pp=2 --set parallel.stages=[1,2]",
        &[
            "parallel.stages is [1, 2]",
            "the numbers of blocks of 2 chunks",
            "which are 4 together",
            "With 2 ranks this size fits: --set parallel.stages=null",
        ],
    ),
    (
        "a stage without blocks between two",
        &[],
        "--model gpt2 --gpus 3 --set parallel.pp=3 --set parallel.stages=[2,0,2]",
        &["parallel.stages is [2, 0, 2]", "3 chunks"],
    ),
    (
        "stages that do not fit, where all else does",
        &[],
        "--model gpt2 --gpus 4 --set parallel.pp=4 --set parallel.stages=[4,1]",
        &["With 4 ranks this size fits: --set parallel.stages=null"],
    ),
    (
        "more ranks that would fit the pipeline, but not the heads",
        &[],
        "--model gpt2 --gpus 3 --set parallel.tp=8",
        &["parallel.tp 8 does not divide the 3 ranks of a stage. With 3 ranks this size fits: --set parallel.tp=1\n"],
    ),
    (
        "fewer ranks than replicas, beside other sizes",
        &[],
        "--model deepseek --gpus 3 --set parallel.pp=3 --set parallel.ep=3 --set parallel.dp_replicate=3",
        &["3 replicas (dp_replicate) cannot share 1 rank of a stage evenly", "parallel.ep=1"],
    ),
    (
        "stages that are no numbers",
        &[],
        "--model gpt2 --gpus 2 --set parallel.pp=2 --set parallel.stages=[5,-1]",
        &["`parallel.stages` is [5, -1]", "a list of whole numbers"],
    ),
    (
        "several chunks with a schedule that has one",
        &[],
        "--model gpt2 --gpus 2 --set parallel.pp=2 --set parallel.virtual_stages=2",
        &["1f1b has one chunk per stage, not 2", "interleaved_1f1b"],
    ),
    (
        "stages and blocks on ranks",
        &[],
        "--model gpt2 --gpus 2 --strategy block --set parallel.pp=2",
        &["pp 2 with strategy block", "use full_shard"],
    ),
    (
        "sizes that do not multiply to the ranks",
        &[],
        "--model gpt2 --gpus 8 --strategy hybrid_shard --set parallel.pp=2 --set parallel.dp_replicate=2 --set parallel.dp_shard=3",
        &[
            "parallel.pp 2 x 2 replicas of hybrid_shard x parallel.dp_shard 3 = 12",
            "there are 8 ranks",
            "dp_shard=null",
        ],
    ),
    (
        "replicas of a strategy that shards nothing",
        &[],
        "--model deepseek --gpus 8 --strategy ddp --set parallel.dp_replicate=2 --set parallel.ep=2",
        &["dp_replicate 2 with strategy ddp, which has 4 copies here", "take hybrid_shard, for 2 replicas"],
    ),
    ("no shard", &[], "--model gpt2 --gpus 4 --set parallel.dp_shard=0", &["parallel.dp_shard 0 = 0", "4 ranks"]),
    (
        "experts over ranks that they do not divide",
        &[],
        "--model deepseek --gpus 6 --set parallel.ep=4",
        &[
            "parallel.ep is 4",
            "8 experts",
            "the number of ranks of a stage, which is 6",
            "With 6 ranks this size fits: --set parallel.ep=2; or give --gpus 8",
        ],
    ),
    (
        "experts over ranks of a replica that they do not divide",
        &[],
        "--model deepseek --gpus 6 --strategy hybrid_shard --set parallel.ep=2",
        &[
            "parallel.ep is 2",
            "the number of ranks of a replica, which is 3",
            "parallel.dp_replicate=1; or give --gpus 8",
        ],
    ),
    (
        "experts over more ranks than there are experts",
        &[],
        "--model deepseek --gpus 16 --set parallel.ep=16",
        &["parallel.ep is 16", "the 8 experts (moe.num_experts)", "With 16 ranks this size fits: --set parallel.ep=8"],
    ),
    (
        "experts that are none",
        &[],
        "--model gpt2 --gpus 2 --set parallel.ep=2",
        &["model.type gpt2 has no experts", "leave it out"],
    ),
    ("experts over no rank", &[], "--model deepseek --set parallel.ep=0", &["parallel.ep is 0", "at least 1"]),
    (
        "experts over ranks, and blocks on ranks",
        &[],
        "--model deepseek --gpus 2 --strategy block --set parallel.ep=2",
        &["ep 2 with strategy block", "use full_shard"],
    ),
    ("heads over no rank", &[], "--model gpt2 --set parallel.tp=0", &["parallel.tp is 0", "at least 1"]),
    (
        "heads over ranks that they do not divide",
        &[],
        "--model gpt2 --gpus 6 --set parallel.tp=4",
        &[
            "parallel.tp 4 does not divide the 6 ranks of a stage",
            "With 6 ranks this size fits: --set parallel.tp=2; or give --gpus 8",
        ],
    ),
    (
        "heads that ranks do not divide",
        &[],
        "--model gpt2 --gpus 3 --set parallel.tp=3 --set train.seq_len=96",
        &[
            "parallel.tp is 3, which does not divide model.n_head, 4",
            "With 3 ranks this size fits: --set parallel.tp=1",
        ],
    ),
    (
        "more ranks than heads",
        &[],
        "--model deepseek --gpus 8 --set parallel.tp=8",
        &[
            "parallel.tp is 8, which does not divide model.num_attention_heads, 4",
            "this size fits: --set parallel.tp=4",
        ],
    ),
    (
        "columns that ranks do not divide",
        &[],
        "--model deepseek --gpus 2 --set parallel.tp=2 --set model.first_k_dense_replace=1 --set model.intermediate_size=101",
        &["parallel.tp is 2, which does not divide model.intermediate_size, 101"],
    ),
    (
        "columns of shared experts that ranks do not divide",
        &[],
        "--model deepseek --gpus 2 --set parallel.tp=2 --set moe.n_shared_experts=1 --set moe.moe_intermediate_size=33",
        &["parallel.tp is 2, which does not divide moe.n_shared_experts x moe.moe_intermediate_size, 33"],
    ),
    ("rows over no rank", &[], "--model gpt2 --set parallel.cp=0", &["parallel.cp is 0", "at least 1"]),
    (
        "rows over ranks that they do not divide",
        &[],
        "--model gpt2 --gpus 6 --set parallel.cp=4",
        &[
            "parallel.cp 4 does not divide the 6 ranks of a stage",
            "With 6 ranks this size fits: --set parallel.cp=3; or give --gpus 8",
        ],
    ),
    (
        "rows over ranks, and blocks on ranks",
        &[],
        "--model gpt2 --gpus 2 --strategy block --set parallel.cp=2",
        &["cp 2 with strategy block", "use full_shard"],
    ),
    (
        "heads over ranks that the context leaves too few of",
        &[],
        "--model gpt2 --gpus 4 --set parallel.cp=2 --set parallel.tp=4",
        &[
            "parallel.cp 2 x parallel.tp 4 = 8 does not divide the 4 ranks of a stage",
            "this size fits: --set parallel.tp=2; or give --gpus 8",
        ],
    ),
    (
        "a vocabulary smaller than the ranks",
        &[("a.txt", b"abababababababababababababababababababababababababababababababababababababababababab")],
        "--model gpt2 --gpus 4 --set parallel.tp=4 --data a.txt --set data.tokenizer=char --set train.seq_len=8 --set train.val_batches=0",
        &[
            "parallel.tp is 4, more than the vocabulary's 2 tokens (model.vocab_size)",
            "this size fits: --set parallel.tp=2",
        ],
    ),
    (
        "heads over ranks, and blocks on ranks",
        &[],
        "--model gpt2 --gpus 2 --strategy block --set parallel.tp=2",
        &["tp 2 with strategy block", "use full_shard"],
    ),
    (
        "heads over ranks of a replica",
        &[],
        "--model gpt2 --gpus 6 --strategy hybrid_shard --set parallel.tp=2",
        &["parallel.tp 2 does not divide the 3 ranks of a replica", "; or give --gpus 8"],
    ),
    (
        "sizes with heads over ranks that do not multiply to them",
        &[],
        "--model gpt2 --gpus 8 --set parallel.tp=2 --set parallel.dp_shard=2",
        &["x parallel.dp_shard 2 x parallel.tp 2 = 4", "there are 8 ranks", "dp_shard=null"],
    ),
    (
        "fewer sequences than groups of ranks",
        &[],
        "--model gpt2 --gpus 8 --set parallel.tp=2 --batch-size 3",
        &["global_batch_size is 3", "the 4 groups of ranks that share them"],
    ),
    (
        "sequences longer than a table of layouts",
        &[],
        "--model deepseek --set parallel.adaptive=true --seq-len 20000",
        &["train.seq_len is 20000", "the last row of parallel.adaptive is up to 10240", "--seq-len 10240"],
    ),
    (
        "a table's heads over ranks that they do not divide",
        &[],
        "--model gpt2 --gpus 3 --set parallel.adaptive=true --set model.n_positions=4096 --seq-len 4096",
        &[
            "parallel.tp 2 does not divide the 3 ranks of a stage",
            "parallel.adaptive's row up to 4096 for train.seq_len 4096",
        ],
    ),
    (
        "a table's batch of fewer sequences than ranks",
        &[],
        "--model gpt2 --gpus 64 --set parallel.adaptive=true",
        &["global_batch_size is 32, fewer sequences than the 64 ranks", "parallel.adaptive's row up to 512"],
    ),
    (
        "a table from long to short",
        &[("a.yaml", ROWS_IN_ANOTHER_ORDER)],
        "--config a.yaml",
        &["row 2 of parallel.adaptive: up_to is 512, and 1024 in the row before", "from short to long"],
    ),
    (
        "a table's row with a key that there is not",
        &[("a.yaml", b"base: preset:gpt2\nparallel: {adaptive: [{up_to: 512, micro_batch: 4, global_batch_size: 8}]}")],
        "--config a.yaml",
        &["`parallel.adaptive` is [{up_to: 512, micro_batch: 4", "a.yaml", "{up_to: 512, micro_batches: 16"],
    ),
];
