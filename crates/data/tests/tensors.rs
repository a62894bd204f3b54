//! Sequences through Burn's data loader.

use burn::data::dataloader::DataLoaderBuilder;
use burn::tensor::DType;
use data::{Dataset, Split, TensorBatch, TensorBatcher};

/// The loader's batches, shuffled by `seed`: the values and the shapes of inputs and targets.
fn batches(dataset: &Dataset, seed: Option<u64>, workers: usize) -> Vec<(Vec<i32>, Vec<i32>)> {
    let train = dataset.sequences(Split::Train, 4).unwrap();
    let loader = DataLoaderBuilder::new(TensorBatcher).batch_size(8).num_workers(workers);
    let loader = match seed {
        Some(seed) => loader.shuffle(seed),
        None => loader,
    };
    let loader = loader.build(train);
    let batches = loader.iter().map(|batch| {
        let TensorBatch { inputs_bt, targets_bt } = batch.unwrap();
        assert_eq!((inputs_bt.dims(), inputs_bt.dtype()), (targets_bt.dims(), DType::I32));
        assert_eq!(inputs_bt.dims()[1], 4);
        (inputs_bt.into_data().try_to_vec().unwrap(), targets_bt.into_data().try_to_vec().unwrap())
    });
    batches.collect()
}

#[test]
fn burns_data_loader_batches_the_sequences_of_a_split() {
    let dataset = Dataset::new((0..101).collect(), 4).unwrap(); // 90 tokens train: 22 sequences
    let in_order = batches(&dataset, None, 0);
    assert_eq!(in_order.iter().map(|(inputs, _)| inputs.len()).collect::<Vec<_>>(), [32, 32, 24]);
    let [inputs, targets] = [0, 1].map(|shift| (shift..88 + shift).collect::<Vec<i32>>());
    assert_eq!(in_order.into_iter().unzip::<_, _, Vec<_>, Vec<_>>(), {
        let parts = |all: &[i32]| all.chunks(32).map(Vec::from).collect::<Vec<_>>();
        (parts(&inputs), parts(&targets))
    });
    let shuffled = batches(&dataset, Some(7), 2);
    assert!(shuffled.iter().flat_map(|(inputs, targets)| inputs.iter().zip(targets)).all(|(i, t)| i + 1 == *t));
    let mut seen: Vec<i32> = shuffled.into_iter().flat_map(|(inputs, _)| inputs).collect();
    assert_ne!(seen, inputs);
    seen.sort_unstable();
    assert_eq!(seen, inputs);
}
