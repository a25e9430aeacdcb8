//! What a contender's process is told, one JSON object a line on its standard input, and what it answers on its output.
//!
//! The same for Rust, Python and JavaScript: the run does not know which of them it speaks to.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// One task: lock and release, again and again, each pair timed.
    Solo { name: String, warm_ms: u64, ms: u64 },
    /// Many tasks, each on a name of its own.
    Many { name: String, tasks: usize, warm_ms: u64, ms: u64 },
    /// Many tasks on one name.
    Contend { name: String, tasks: usize, hold_ms: u64, warm_ms: u64, ms: u64 },
    /// Makes the lock that `Lock` and `Unlock` are about; where a baton is needed, the first process lays it down.
    Prepare { name: String },
    /// Takes the prepared lock, however long it takes.
    Lock,
    /// Lets it go.
    Unlock,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Connected.
    Ready,
    /// The warm-up is over and counting begins: an announcement, the answer follows.
    Counting,
    Solo {
        p50_ns: u64,
        p99_ns: u64,
        pairs: u64,
    },
    Many {
        pairs: u64,
        seconds: f64,
    },
    Contend(Contended),
    Prepared,
    /// When it asked and when it held, on a clock that all its processes share.
    Held {
        asked_ns: u64,
        at_ns: u64,
    },
    /// When it called release.
    Released {
        at_ns: u64,
    },
    Failed {
        why: String,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contended {
    pub(crate) seconds: f64,
    pub(crate) acquisitions: u64,
    /// Acquisitions by another task than the one before.
    pub(crate) handovers: u64,
    /// Acquisitions of each task.
    pub(crate) per_task: Vec<u64>,
    /// From the first release since the lock last changed hands until another held it.
    pub(crate) gap_p50_ns: Option<u64>,
    pub(crate) gap_p99_ns: Option<u64>,
    /// How often somebody was already inside.
    pub(crate) violations: u64,
    /// How often the library gave up waiting, and was asked again.
    pub(crate) gave_up: u64,
    /// How often the library said at release that the lock had been lost.
    pub(crate) lost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_the_scripts_know() {
        let order = Order::Solo { name: "a".into(), warm_ms: 1, ms: 2 };
        assert_eq!(serde_json::to_string(&order).unwrap(), r#"{"order":"solo","name":"a","warm_ms":1,"ms":2}"#);
        assert_eq!(serde_json::to_string(&Order::Lock).unwrap(), r#"{"order":"lock"}"#);
        let answer: Answer = serde_json::from_str(r#"{"answer":"held","asked_ns":1,"at_ns":2}"#).unwrap();
        assert!(matches!(answer, Answer::Held { asked_ns: 1, at_ns: 2 }));
    }
}
