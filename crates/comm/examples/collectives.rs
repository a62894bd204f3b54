//! Four ranks that are threads, and what their collectives return: `cargo run --example collectives`.

use burn::tensor::{Device, Tensor};
use comm::{CommError, RankFailure, Reduce, TIMEOUT, run_ranks};

fn values(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn main() -> Result<(), RankFailure<CommError>> {
    let of_ranks = run_ranks(vec![Device::flex(); 4], TIMEOUT, |comm| {
        let rank = comm.rank() as f32;
        let mine = Tensor::<1>::from_floats([rank, 10.0 * rank], comm.device());
        let gathered = values(comm.all_gather(mine.clone())?);
        let sum = values(comm.all_reduce(mine, Reduce::Sum)?);
        let four = Tensor::<1>::from_floats([0.0, 1.0, 2.0, 3.0], comm.device()) + rank;
        let share = values(comm.reduce_scatter(four)?);
        // Even and odd ranks, each as a separate group.
        let group = comm.split(comm.rank() % 2)?;
        let of_group = values(group.all_reduce(Tensor::from_floats([rank], comm.device()), Reduce::Sum)?);
        Ok::<_, CommError>((gathered, sum, share, of_group))
    })?;
    for (rank, (gathered, sum, share, of_group)) in of_ranks.iter().enumerate() {
        println!(
            "rank {rank}: all_gather {gathered:?}, all_reduce {sum:?}, reduce_scatter {share:?}, of its group {of_group:?}"
        );
        assert_eq!(gathered, &[0.0, 0.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
        assert_eq!(sum, &[6.0, 60.0]);
        assert_eq!(share, &[6.0 + 4.0 * rank as f32]);
        assert_eq!(of_group, &[if rank % 2 == 0 { 2.0 } else { 4.0 }]);
    }
    Ok(())
}
