//! Context parallelism: rows are distributed for equal causal attention work, gathered in order, and circulated.

use burn::tensor::{Device, Tensor, TensorData};
use comm::{ContextParallel, FirstError, SequenceRanks, TensorParallel};
use test_kit::{floats, on_ranks};

const T: usize = 16;

/// Returns a tensor `[2, T, 3]` of distinct elements.
fn sequences() -> Tensor<3> {
    let values: Vec<f32> = (0..2 * T * 3).map(|i| i as f32).collect();
    Tensor::from_data(TensorData::new(values, [2, T, 3]), &Device::flex())
}

#[test]
fn ranks_have_every_row_once_and_as_many_pairs_of_a_query_and_a_key() {
    let found = on_ranks(4, |comm| {
        let cp = ContextParallel::new(comm, FirstError::default());
        Ok::<_, comm::CommError>(cp.chunks(T).into_iter().flatten().collect::<Vec<_>>())
    });
    assert_eq!(found, [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]);
    let pairs = |rows: &Vec<usize>| rows.iter().map(|row| row + 1).sum::<usize>();
    assert!(found.iter().all(|rows| pairs(rows) == T * (T + 1) / 2 / 4));
}

#[test]
fn what_is_own_of_all_ranks_is_gathered_in_order_and_its_gradient_is_the_sum_of_the_ranks() {
    for (of_context, of_rows) in [(1, 1), (2, 1), (4, 1), (2, 2), (1, 4)] {
        let ranks = of_context * of_rows;
        on_ranks(ranks, move |comm| {
            let first_error = FirstError::default();
            let rank = comm.rank();
            // Ranks of a context are `of_rows` apart; ranks that share rows are adjacent.
            let tp = TensorParallel::new(comm.split(rank / of_rows)?, first_error.clone());
            let cp = ContextParallel::new(comm.split(rank % of_rows)?, first_error.clone());
            let of = SequenceRanks { tp, cp, padding: 0 };
            let own = of.own(sequences(), 1);
            assert_eq!((of.whole(own.dims()[1]), of.is_alone()), (T, ranks == 1));
            let rows: Vec<usize> = of.rows(own.dims()[1]).into_iter().flatten().collect();
            let by_row: Vec<Tensor<3>> = rows.iter().map(|row| sequences().slice_dim(1, *row..row + 1)).collect();
            assert_eq!(floats(Tensor::cat(by_row, 1)), floats(own.clone()), "rank {rank}");

            // The last rows are padding; some ranks hold nothing else.
            for padding in 1..T {
                let (of, t, s) = (of.padded(padding), T - padding, own.dims()[1]);
                assert_eq!((of.whole(s), of.here(t)), (t, s));
                assert_eq!(floats(of.gather(own.clone())), floats(sequences().slice_dim(1, 0..t)), "rank {rank}");
                let (filled, padding) = rows.split_at(of.filled(s));
                assert!(filled.iter().all(|row| *row < t) && padding.iter().all(|row| *row >= t), "rank {rank}");
            }

            let own = own.autodiff().require_grad();
            let all = of.gather(own.clone());
            assert_eq!(floats(all.clone().inner()), floats(sequences()), "rank {rank}");
            // The cotangent of rank r is r + 1 times the values.
            let cotangent = Tensor::from_inner(sequences() * (rank + 1) as f32);
            let gradient = own.grad(&(all * cotangent).sum().backward()).unwrap();
            let times = (1..=ranks).sum::<usize>() as f32;
            assert_eq!(floats(gradient), floats(own.inner() * times), "rank {rank}");
            first_error.check()
        });
    }
}

#[test]
fn what_is_passed_on_goes_round() {
    on_ranks(3, |comm| {
        let (rank, first_error) = (comm.rank(), FirstError::default());
        let cp = ContextParallel::new(comm, first_error.clone());
        let mut x = Tensor::<1>::full([2], rank as f32, &Device::flex());
        for step in 1..=3 {
            cp.send(x.clone());
            x = cp.recv(&[&x]).remove(0);
            assert_eq!(floats(x.clone()), [((rank + 3 - step) % 3) as f32; 2]);
        }
        first_error.check()
    });
}
