//! Which ranks of a group are on which machine.

/// The ranks of a group on several machines with the same number of ranks, more than one. A *place* is a rank's number
/// among the ranks of its machine; the ranks with the same place are a *column*.
///
/// ```text
///              machine 0   machine 1   machine 2
/// place 0      rank 0      rank 2      rank 4       a column
/// place 1      rank 1      rank 3      rank 5       a column
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Machines {
    /// The ranks of each machine by place. Both the ranks of a machine and those of a column ascend.
    ranks: Vec<Vec<usize>>,
}

impl Machines {
    /// Sorts the ranks from 0 to `n` by machine. Returns `None` if they are on one machine, if each has a machine of its
    /// own, if machines have different numbers of ranks, or if a column would not be in the order of the machines.
    pub fn of(n: usize, machine: impl Fn(usize) -> usize) -> Option<Self> {
        let (mut numbers, mut ranks) = (Vec::new(), Vec::<Vec<usize>>::new());
        for rank in 0..n {
            let number = machine(rank);
            let known = numbers.iter().position(|known| *known == number);
            let index = known.unwrap_or_else(|| {
                numbers.push(number);
                ranks.push(Vec::new());
                ranks.len() - 1
            });
            ranks[index].push(rank);
        }
        let per_machine = ranks.first()?.len();
        let even = ranks.iter().all(|ranks| ranks.len() == per_machine);
        if ranks.len() == 1 || per_machine == 1 || !even {
            return None;
        }
        let machines = Self { ranks };
        (0..per_machine).all(|place| machines.column(place).is_sorted()).then_some(machines)
    }

    /// Returns the number of machines, H.
    pub fn count(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the number of ranks per machine, g.
    pub fn per_machine(&self) -> usize {
        self.ranks[0].len()
    }

    /// Returns the ranks of a machine.
    pub fn ranks(&self, machine: usize) -> &[usize] {
        &self.ranks[machine]
    }

    /// Returns the ranks with a place.
    pub fn column(&self, place: usize) -> Vec<usize> {
        self.ranks.iter().map(|ranks| ranks[place]).collect()
    }

    /// Returns the machine and the place of a rank.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn find(&self, rank: usize) -> (usize, usize) {
        let place = |ranks: &Vec<usize>| ranks.binary_search(&rank).ok();
        let mut found = self.ranks.iter().enumerate().filter_map(|(machine, ranks)| Some((machine, place(ranks)?)));
        found.next().expect("a rank of the group")
    }

    /// Returns all ranks, column by column.
    pub fn by_column(&self) -> Vec<usize> {
        (0..self.per_machine()).flat_map(|place| self.column(place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_same_place_on_each_machine_however_they_are_numbered() {
        let blocks = Machines::of(6, |rank| rank / 2).unwrap();
        assert_eq!((blocks.count(), blocks.per_machine(), blocks.find(3)), (3, 2, (1, 1)));
        assert_eq!(blocks.by_column(), [0, 2, 4, 1, 3, 5]);
        let in_turn = Machines::of(6, |rank| 7 - rank % 3).unwrap();
        assert_eq!((in_turn.count(), in_turn.per_machine(), in_turn.find(3)), (3, 2, (0, 1)));
        assert_eq!(in_turn.by_column(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn ranks_on_one_machine_alone_or_unevenly_spread_have_no_columns() {
        for machines in [&[0, 0, 0][..], &[0, 1, 2], &[0, 0, 1], &[0, 1, 1, 0]] {
            assert_eq!(Machines::of(machines.len(), |rank| machines[rank]), None, "{machines:?}");
        }
    }
}
