//! Slots of the backend array.
//!
//! A flow entry names its backend by slot and generation. A slot is given to a new owner as late as
//! possible, and always with a generation that it never had: flows of the last owner are then no one's.

use std::collections::{BTreeSet, VecDeque};

/// Which slots are free, and the generation each was last given.
#[derive(Clone, Debug)]
pub struct Slots {
    limit: u32,
    /// Last generation of each slot that was ever used; the next id is the length.
    generations: Vec<u32>,
    /// Released slots, the longest released first.
    released: VecDeque<u32>,
}

impl Slots {
    /// `limit` slots, all never used.
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            generations: Vec::new(),
            released: VecDeque::new(),
        }
    }

    /// Takes a slot: its id and new generation, or `None` if all are in use.
    ///
    /// A slot that was never used comes first, then the one released longest ago.
    pub fn take(&mut self) -> Option<(u32, u32)> {
        let fresh = u32::try_from(self.generations.len())
            .ok()
            .filter(|&id| id < self.limit);
        if let Some(id) = fresh {
            self.generations.push(1);
            return Some((id, 1));
        }
        while let Some(id) = self.released.pop_front() {
            // A slot that has had every generation is not used again.
            if let Some(generation) = self.generations.get_mut(id as usize)
                && let Some(next) = generation.checked_add(1)
            {
                *generation = next;
                return Some((id, next));
            }
        }
        None
    }

    /// Gives a slot back.
    pub fn release(&mut self, id: u32) {
        debug_assert!(!self.released.contains(&id), "slot {id} released twice");
        self.released.push_back(id);
    }

    /// Makes exactly the slots of `owned` taken, whatever was taken or released before; generations
    /// go on from where they are.
    pub fn own_exactly(&mut self, owned: &BTreeSet<u32>) {
        self.released.retain(|id| !owned.contains(id));
        for id in 0..self.generations.len() as u32 {
            if !owned.contains(&id) && !self.released.contains(&id) {
                self.released.push_back(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn never_used_first_then_longest_released() {
        let mut slots = Slots::new(3);
        assert_eq!(slots.take(), Some((0, 1)));
        assert_eq!(slots.take(), Some((1, 1)));
        slots.release(1);
        slots.release(0);
        assert_eq!(slots.take(), Some((2, 1)));
        assert_eq!(slots.take(), Some((1, 2)));
        assert_eq!(slots.take(), Some((0, 2)));
        assert_eq!(slots.take(), None);
    }

    #[test]
    fn a_worn_out_slot_is_retired() {
        let mut slots = Slots::new(1);
        slots.take();
        slots.generations[0] = u32::MAX;
        slots.release(0);
        assert_eq!(slots.take(), None);
    }

    proptest! {
        #[test]
        fn an_owner_is_unique(ops in prop::collection::vec(any::<Option<u8>>(), 0..200)) {
            let mut slots = Slots::new(5);
            let mut held: Vec<u32> = Vec::new();
            let mut seen = HashSet::new();
            for op in ops {
                match op {
                    Some(at) if !held.is_empty() => {
                        let id = held.swap_remove(at as usize % held.len());
                        slots.release(id);
                    }
                    _ => match slots.take() {
                        Some((id, generation)) => {
                            prop_assert!(generation > 0 && id < 5 && !held.contains(&id));
                            prop_assert!(seen.insert((id, generation)));
                            held.push(id);
                        }
                        None => prop_assert_eq!(held.len(), 5),
                    },
                }
            }
        }
    }
}
