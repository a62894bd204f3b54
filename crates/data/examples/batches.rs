//! Text to batches: as arrays in Kiln's order, and with the feature `burn` as tensors from Burn's data loader.
use data::{Batch, Dataset, Loader, OpenOptions};
use std::error::Error;

const SEQ_LEN: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "To be, or not to be, that is the question. ".repeat(100))?;
    let options = OpenOptions { cache: Some(folder.path().join("cache")), ..OpenOptions::default() };
    let prepared = data::open(text.to_str().ok_or("a path in UTF-8")?, &options)?;
    prepared.dataset.check(SEQ_LEN)?;
    arrays(&prepared.dataset)?;
    #[cfg(feature = "burn")]
    tensors(&prepared.dataset)?;
    Ok(())
}

/// Ten steps of 8 sequences, in the order of the run with seed 1337. A thread cuts them ahead of time.
fn arrays(dataset: &Dataset) -> Result<(), Box<dyn Error>> {
    let dataset = dataset.clone();
    let cut = move |step| dataset.train_batch(1337, 8 * step..8 * (step + 1), SEQ_LEN);
    let batches = Loader::start(0..10, cut).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(batches.len(), 10);
    for Batch { inputs, targets, .. } in batches {
        assert_eq!(inputs.len(), 8 * SEQ_LEN);
        assert_eq!(inputs[1..SEQ_LEN], targets[..SEQ_LEN - 1]); // each target is the next input
    }
    Ok(())
}

/// An epoch of batches of 8 sequences, shuffled and loaded by two threads of Burn.
#[cfg(feature = "burn")]
fn tensors(dataset: &Dataset) -> Result<(), Box<dyn Error>> {
    let train = dataset.sequences(data::Split::Train, SEQ_LEN)?;
    let loader = burn::data::dataloader::DataLoaderBuilder::new(data::TensorBatcher);
    let loader = loader.batch_size(8).shuffle(1337).num_workers(2).build(train);
    for batch in loader.iter() {
        let data::TensorBatch { inputs_bt, targets_bt } = batch?;
        let [b, t] = inputs_bt.dims();
        assert!(b <= 8 && t == SEQ_LEN && targets_bt.dims() == [b, t]);
    }
    Ok(())
}
