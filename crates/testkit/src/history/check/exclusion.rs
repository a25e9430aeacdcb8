//! P1, P9, P10: whose windows may overlap with whose. One sweep over the ends of windows answers all three.

use super::super::{Hold, Kind, Mode, Segment};
use super::{Broken, is_exclusive};

/// P1: the windows of two exclusive holds of a name have no instant in common.
pub(super) fn windows(holds: &[Hold], broken: &mut Broken<'_>) {
    sweep(holds.iter().filter(|hold| is_exclusive(hold.kind)), |inside| {
        let (first, rest) = inside.split_first()?;
        // Several entries of one owner into one hold are one hold.
        let stranger = rest
            .iter()
            .find(|(hold, _)| hold.owner.is_none() || (hold.owner, hold.token) != (first.0.owner, first.0.token))?;
        Some(format!("two hold it at once: {}", pair(first, stranger)))
    })
    .for_each(|says| broken.because(says));
}

/// P9: a writer's window has no instant in common with any other; readers may overlap.
pub(super) fn writers(holds: &[Hold], broken: &mut Broken<'_>) {
    sweep(holds.iter().filter(|hold| hold.kind == Kind::Rw), |inside| {
        let writer = inside.iter().find(|(_, segment)| segment.mode == Mode::Exclusive)?;
        let other = inside.iter().find(|(hold, _)| hold.claim != writer.0.claim)?;
        Some(format!("a writer is not alone: {}", pair(writer, other)))
    })
    .for_each(|says| broken.because(says));
}

/// P10: at every instant the permits in use are at most as many as there are.
pub(super) fn permits(holds: &[Hold], broken: &mut Broken<'_>) {
    sweep(holds.iter().filter(|hold| hold.kind == Kind::Semaphore), |inside| {
        let permits = inside.iter().filter_map(|(_, segment)| match segment.mode {
            Mode::Permits { take, of } => Some((u64::from(take), u64::from(of))),
            _ => None,
        });
        let (taken, of) = permits.fold((0, u64::MAX), |(sum, least), (take, of)| (sum + take, least.min(of)));
        let tokens: Vec<u64> = inside.iter().map(|(hold, _)| hold.token).collect();
        (taken > of).then(|| format!("{taken} of {of} permits are in use, by tokens {tokens:?}"))
    })
    .for_each(|says| broken.because(says));
}

type Inside<'a> = (&'a Hold, &'a Segment);

/// Walks through time and asks `wrong` about everybody inside, each time somebody has come in.
fn sweep<'a>(
    holds: impl Iterator<Item = &'a Hold>,
    wrong: impl Fn(&[Inside<'a>]) -> Option<String>,
) -> impl Iterator<Item = String> {
    let mut steps: Vec<(u64, bool, Inside<'a>)> = Vec::new();
    for hold in holds {
        for segment in hold.segments.iter().filter(|segment| segment.from < segment.to) {
            steps.push((segment.from, true, (hold, segment)));
            steps.push((segment.to, false, (hold, segment)));
        }
    }
    steps.sort_by_key(|(t, enters, _)| (*t, *enters)); // windows are half open: out before in
    let (mut inside, mut says): (Vec<Inside<'a>>, Vec<String>) = Default::default();
    for (_, enters, who) in steps {
        if enters {
            inside.push(who);
            says.extend(wrong(&inside));
        } else {
            inside.retain(|(_, segment)| !std::ptr::eq(*segment, who.1));
        }
    }
    says.into_iter()
}

fn pair((a, a_in): &Inside<'_>, (b, b_in): &Inside<'_>) -> String {
    let show = |hold: &Hold, segment: &Segment| {
        format!("token {} {:?} in [{}, {})", hold.token, segment.mode, segment.from, hold.to.min(segment.to))
    };
    format!("{} and {}", show(a, a_in), show(b, b_in))
}

#[cfg(test)]
mod tests {
    use super::super::super::{Event, Op, Phase};
    use super::super::sample::Sample;
    use super::*;

    #[test]
    fn windows_that_follow_each_other_are_sound() {
        assert!(Sample::of(Kind::Mutex).hold(1, 7, 10, 20).hold(2, 8, 20, 30).broken().is_empty());
    }

    #[test]
    fn windows_that_overlap_are_found() {
        for kind in [Kind::Mutex, Kind::Fair, Kind::Election, Kind::Reentrant] {
            assert_eq!(Sample::of(kind).hold(1, 7, 10, 20).hold(2, 8, 19, 30).broken(), ["P1"], "{kind:?}");
        }
    }

    #[test]
    fn a_long_hold_is_not_forgotten_behind_short_ones() {
        assert!(Sample::of(Kind::Mutex).hold(1, 7, 10, 90).hold(2, 8, 20, 30).hold(3, 9, 50, 60).broken().contains(&"P1"));
    }

    #[test]
    fn readers_may_overlap_and_writers_may_not() {
        let readers = || Sample::of(Kind::Rw).hold_as(1, 7, 10, 20, Mode::Shared).hold_as(2, 8, 15, 30, Mode::Shared);
        assert!(readers().hold(3, 9, 30, 40).broken().is_empty());
        assert_eq!(readers().hold(3, 9, 29, 40).broken(), ["P9"]);
        assert_eq!(Sample::of(Kind::Rw).hold(1, 7, 10, 20).hold(2, 8, 19, 30).broken(), ["P9"]);
    }

    #[test]
    fn a_downgraded_writer_may_have_company_and_a_writer_not() {
        let downgrade = |t, phase| Event::new(t, "x", Kind::Rw, Op::Downgrade, phase).claim(1).mode(Mode::Shared);
        let reader = |from| Sample::of(Kind::Rw).hold(1, 7, 10, 40).hold_as(2, 8, from, 30, Mode::Shared);
        let down = || [downgrade(15, Phase::Invoke), downgrade(17, Phase::Ok)];
        assert!(reader(16).with(down()).broken().is_empty());
        assert_eq!(reader(14).with(down()).broken(), ["P9"]);
    }

    #[test]
    fn permits_are_counted() {
        let take = |take| Mode::Permits { take, of: 4 };
        let three = || Sample::of(Kind::Semaphore).hold_as(1, 7, 10, 30, take(3));
        assert!(three().hold_as(2, 8, 15, 20, take(1)).hold_as(3, 9, 20, 25, take(1)).broken().is_empty());
        assert_eq!(three().hold_as(2, 8, 15, 20, take(2)).broken(), ["P10"]);
    }
}
