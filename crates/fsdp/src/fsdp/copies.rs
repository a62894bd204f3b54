//! Whether copies of a unit are the same on all ranks that have one.

use super::Fsdp;
use crate::FsdpError;
use crate::placement::Groups;
use crate::plan::Class;
use burn::tensor::{DType, Int, Tensor, TensorData};
use comm::{CommError, Communicator, Reduce};

impl<B: 'static> Fsdp<B> {
    /// Refuses ranks whose copies of a unit, parameters and moments, are not the same to the last bit: a device or its memory has failed
    /// then, or the ranks do not run the same program. A collective, for the moments at which the state is kept; it reads once what has
    /// copies: all under `ddp` (of experts over ranks those that several ranks have) and `hybrid_shard`, and what several stages hold.
    pub fn check_copies(&self) -> Result<(), FsdpError> {
        let digests: Vec<Vec<(Class, u64)>> = self.units.iter().map(|unit| unit.digests().collect()).collect();
        let ties: Vec<(usize, usize)> =
            self.units.iter().enumerate().filter_map(|(i, unit)| Some((i, unit.tie()?))).collect();
        let (spread, cut) = (self.config.ep > 1, self.config.tp > 1);
        let find = move |groups: &Groups| {
            let of = |classes: &[Class]| -> Vec<(usize, u64)> {
                let of_unit = |(unit, all): (usize, &Vec<(Class, u64)>)| {
                    let of_class = all.iter().filter(|(class, _)| classes.contains(class));
                    of_class.map(|(_, digest)| (unit, *digest)).collect::<Vec<_>>()
                };
                digests.iter().enumerate().flat_map(of_unit).collect()
            };
            let among = |group: &Communicator, mine: &[(usize, u64)]| {
                let digests = mine.iter().map(|(_, digest)| *digest).collect();
                let different = first_difference(group, groups.world.rank(), digests)?;
                Ok::<_, CommError>(different.map(|(i, ranks)| (mine[i].0, ranks)))
            };
            let mut different = among(&groups.of(Class::Dense).replicate, &of(&[Class::Dense, Class::Fp32]))?;
            for (class, _) in [(Class::Expert, spread), (Class::Tensor, cut)].into_iter().filter(|(_, is)| *is) {
                different = different.or(among(&groups.of(class).replicate, &of(&[class]))?);
            }
            for (unit, tie) in ties {
                let mine: Vec<(usize, u64)> = digests[unit].iter().map(|(_, digest)| (unit, *digest)).collect();
                different = different.or(among(&groups.ties[tie], &mine)?);
            }
            Ok(different)
        };
        let different = self.lanes.reduce.submit(find).wait()?;
        // One of them is told to all, so that all end with it.
        let (unit, [a, b]) =
            different.map_or((0.0, [0.0; 2]), |(unit, ranks)| (unit as f64 + 1.0, ranks.map(|rank| rank as f64)));
        let code = (unit * 65536.0 + a) * 65536.0 + b;
        match self.over_world(vec![code], Reduce::Max)?[0] as u64 {
            0 => Ok(()),
            code => {
                let [b, a, unit] = [code, code >> 16, code >> 32].map(|part| (part & 0xffff) as usize);
                Err(FsdpError::Copies { unit: self.units[unit - 1].name(), ranks: [a, b] })
            }
        }
    }
}

/// Which of these digests is not the same on all ranks of a group, and the numbers in the world of two ranks that differ in it.
fn first_difference(
    group: &Communicator,
    rank: usize,
    digests: Vec<u64>,
) -> Result<Option<(usize, [usize; 2])>, CommError> {
    let mine: Vec<i64> = std::iter::once(rank as i64).chain(digests.iter().map(|digest| *digest as i64)).collect();
    let len = mine.len();
    let mine = Tensor::<1, Int>::from_data(TensorData::new(mine, [len]), (group.device(), DType::I64));
    let all: Vec<i64> = group.all_gather(mine)?.into_data().iter::<i64>().collect();
    let other =
        |i: usize| all.chunks(len).find(|of| of[i] != all[i]).map(|of| (i - 1, [all[0] as usize, of[0] as usize]));
    Ok((1..len).find_map(other))
}
