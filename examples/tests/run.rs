//! Every example runs, on both stores, and says what it promises to say.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Runs an example on a store (none: a temporary SQLite file) and gives what it printed.
///
/// Who is let in after a wait has two seconds until it is renewed. A machine that stands still for longer costs it the lock, and it
/// says so and ends: then there is another run.
fn run(example: &str, store: Option<&str>) -> String {
    for _ in 0..5 {
        let (status, printed, errors) = run_once(example, store);
        // A leader goes on, and once in a run that is on purpose.
        let lost = errors.contains("the hold was lost") || printed.matches("has stopped").count() > 1;
        assert!(status.success() || lost, "{example} failed with {status}:\n{printed}{errors}");
        if !lost {
            return printed;
        }
    }
    panic!("{example}: five times somebody lost its lock");
}

/// How it ended, what it printed, and what it complained of.
fn run_once(example: &str, store: Option<&str>) -> (ExitStatus, String, String) {
    let mut command = Command::new(example);
    let mut child = command.args(store).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the example starts");
    let deadline = Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().expect("the example is ours") {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().expect("the example is ours");
            panic!("{example} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (mut printed, mut errors) = (String::new(), String::new());
    child.stdout.take().expect("it is piped").read_to_string(&mut printed).expect("it prints text");
    child.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("it prints text");
    (status, printed, errors)
}

/// One test per example on one store.
macro_rules! examples {
    ($store:ident = $argument:expr; $($example:ident)*) => {
        mod $store {
            $(
                #[test]
                fn $example() {
                    super::$example(&super::run(env!(concat!("CARGO_BIN_EXE_", stringify!($example))), $argument));
                }
            )*
        }
    };
}

examples!(sqlite = None; nightly_job last_item leader connection_limit blocking);
examples!(memory = Some("memory"); nightly_job last_item leader connection_limit blocking);

fn nightly_job(printed: &str) {
    assert_eq!(printed.matches("writing the report").count(), 1, "{printed}");
    assert_eq!(printed.matches("report is somebody else's tonight").count(), 2, "{printed}");
    assert_eq!(printed.matches("backup stopped half-way").count(), 1, "{printed}");
    assert!(!printed.contains("backup done"), "{printed}");
}

fn last_item(printed: &str) {
    let sold = |line: &str| -> (String, u32) {
        let (way, rest) = line.split_once(" sold ").expect(printed);
        (way.trim().to_owned(), rest.trim_start().split(' ').next().expect(printed).parse().expect(printed))
    };
    let lines: Vec<_> = printed.lines().map(sold).collect();
    let (race, rest) = lines.split_first().expect(printed);
    assert_eq!(race.0, "no lock");
    assert!(race.1 >= 200, "nothing is sold twice only on a strange day, and never less than there is: {printed}");
    let exactly = |way: &str| (way.to_owned(), 200);
    assert_eq!(rest, [exactly("mutex"), exactly("transaction"), exactly("cell")], "{printed}");
}

fn leader(printed: &str) {
    let leaders = printed.lines().filter_map(|line| line.strip_prefix("term ")?.strip_suffix(" leads")?.split_once(": "));
    let (terms, names): (Vec<u64>, Vec<&str>) = leaders.map(|(term, name)| (term.parse::<u64>().unwrap(), name)).unzip();
    assert!(terms.len() == 3 && terms.is_sorted_by(|a, b| a < b), "{printed}");
    assert!(names[0] != names[1] && names[1] != names[2], "{printed}");
    assert!(printed.contains("steps down: an update of this node") && printed.contains("has stopped"), "{printed}");
}

fn connection_limit(printed: &str) {
    let most = printed.split_once("never more than ").and_then(|(_, rest)| rest.split(' ').next());
    assert!(most.is_some_and(|most| (1..=3).contains(&most.parse::<u32>().unwrap())), "{printed}");
    assert!(printed.starts_with("10 workers"), "{printed}");
}

fn blocking(printed: &str) {
    assert_eq!(printed, "200 different numbers, the last one is 200\n");
}
