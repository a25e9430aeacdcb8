//! One run: repetition by repetition, line by line, every contender once, so that a noisy neighbour hits all of them alike.

use std::path::PathBuf;
use std::time::Duration;

use crate::catalogue::{self, Entry, Program, Side};
use crate::handover;
use crate::lines::{self, Line};
use crate::orders::{Answer, Contended, Order};
use crate::process::Process;
use crate::report;
use crate::results::{Circumstances, Reading, Results, json};
use crate::server::{self, Calls, Server};
use crate::store::Store;

#[derive(Debug)]
pub(crate) struct Settings {
    stores: Vec<Store>,
    repeat: usize,
    pace: Pace,
    quick: bool,
    only: Vec<String>,
    lines: Vec<Line>,
    json: Option<PathBuf>,
}

/// How long things take in one repetition, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Before counting begins: connections, compilers that learn while they run, everybody in line.
    warm_up: u64,
    crowd_warm_up: u64,
    solo: u64,
    many: u64,
    handover: u64,
    contended: u64,
    crowd: u64,
}

const FULL: Pace =
    Pace { warm_up: 200, crowd_warm_up: 1000, solo: 500, many: 500, handover: 2000, contended: 1000, crowd: 2500 };
const QUICK: Pace =
    Pace { warm_up: 100, crowd_warm_up: 500, solo: 150, many: 150, handover: 500, contended: 300, crowd: 800 };

impl Settings {
    /// `None` if only help was asked for.
    pub(crate) fn parse(arguments: &[String]) -> Result<Option<Self>, String> {
        let mut repeat = None;
        let mut settings = Settings {
            stores: Store::ALL.to_vec(),
            repeat: 0,
            pace: FULL,
            quick: false,
            only: Vec::new(),
            lines: Line::ALL.to_vec(),
            json: None,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--help" | "-h" => return Ok(None),
                "--server" => settings.stores = value()?.split(',').map(Store::parse).collect::<Result<_, _>>()?,
                "--quick" => (settings.quick, settings.pace) = (true, QUICK),
                "--repeat" => repeat = Some(parse_count(value()?)?),
                "--only" => settings.only = value()?.split(',').map(parse_contender).collect::<Result<_, _>>()?,
                "--lines" => settings.lines = value()?.split(',').map(parse_line).collect::<Result<_, _>>()?,
                "--json" => settings.json = Some(value()?.into()),
                _ => return Err(format!("{argument} is not understood")),
            }
        }
        settings.repeat = repeat.unwrap_or(if settings.quick { 3 } else { 5 });
        Ok(Some(settings))
    }

    /// The bases are always among them: without a base there are no multiples.
    fn entries(&self, store: Store) -> Vec<&'static Entry> {
        let is_base = |entry: &Entry| entry.side == Side::Raw || catalogue::is_base(store, entry.key);
        let chosen = |entry: &&Entry| self.only.is_empty() || is_base(entry) || self.only.iter().any(|key| key == entry.key);
        catalogue::of(store).iter().filter(chosen).collect()
    }
}

pub(crate) fn run(settings: &Settings) -> Result<(), String> {
    let mut documents = Vec::new();
    for (place, &store) in settings.stores.iter().enumerate() {
        let (circumstances, results) = on(store, settings)?;
        let entries = settings.entries(store);
        let apart = if place > 0 { "\n" } else { "" };
        print!("{apart}{}", report::table(&results, &entries, &circumstances));
        documents.push(json(&results, &entries, &circumstances));
    }
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&documents).expect("plain data");
        std::fs::write(path, text + "\n").map_err(|error| format!("writing {}: {error}", path.display()))?;
        eprintln!("every repetition is in {}", path.display());
    }
    Ok(())
}

/// All repetitions on one server.
fn on(store: Store, settings: &Settings) -> Result<(Circumstances, Results), String> {
    let mut server = server::start(store)?;
    let circumstances = Circumstances::look(store, server.what(), settings.repeat, settings.quick);
    let entries = settings.entries(store);
    let mut results = Results::default();
    for repetition in 1..=settings.repeat {
        for &line in &settings.lines {
            eprintln!("{}, repetition {repetition} of {}: {}", store.key(), settings.repeat, line.key());
            server.count(line == Line::Crowd)?;
            // Another one begins each time, so that nobody always comes after the same.
            let (later, first) = entries.split_at(repetition % entries.len());
            for entry in first.iter().chain(later).filter(|entry| entry.lines.contains(&line)) {
                let visits = results.visits.entry((line, entry.key)).or_default();
                let mut commands = Calls::new();
                let name = format!("peers/{}/{}/{repetition}", line.key(), entry.key);
                let reading = visit(store, &mut *server, settings.pace, line, entry, &name, &mut commands);
                if let Err(why) = &reading {
                    eprintln!("  {}: {why}", entry.key);
                }
                visits.readings.push(reading);
                for (command, count) in commands {
                    *visits.commands.entry(command).or_default() += count;
                }
                server.clear()?;
            }
        }
    }
    Ok((circumstances, results))
}

/// One contender on one line, once.
fn visit(
    store: Store,
    server: &mut dyn Server,
    pace: Pace,
    line: Line,
    entry: &Entry,
    name: &str,
    commands: &mut Calls,
) -> Result<Reading, String> {
    let name = name.to_owned();
    // Java is slow until it has compiled what runs often, and nobody runs it for a second only.
    let longer = if matches!(entry.program, Program::Java(_)) { 10 } else { 1 };
    let pace = Pace { warm_up: pace.warm_up * longer, ..pace };
    let order = match line {
        Line::Handover => {
            let seen = handover::measure(store, entry, server.url(), &name, Duration::from_millis(pace.handover))?;
            return Ok(Reading::from([
                ("handover", seen.p50_ns as f64 / 1e9),
                ("handover_p99", seen.p99_ns as f64 / 1e9),
                ("samples", seen.count as f64),
                ("violations", seen.violations as f64),
            ]));
        }
        Line::Solo => Order::Solo { name, warm_ms: pace.warm_up, ms: pace.solo },
        Line::Many => Order::Many { name, tasks: lines::MANY, warm_ms: pace.warm_up, ms: pace.many },
        Line::Contended => {
            Order::Contend { name, tasks: lines::CONTENDERS, hold_ms: 0, warm_ms: pace.warm_up, ms: pace.contended }
        }
        Line::Crowd => Order::Contend {
            name,
            tasks: lines::CROWD,
            hold_ms: lines::CROWD_HOLD_MS,
            warm_ms: pace.crowd_warm_up,
            ms: pace.crowd,
        },
    };
    let mut process = Process::start(store, entry, server.url(), 0)?;
    process.order(&order)?;
    let due = Duration::from_millis(pace.warm_up + pace.crowd_warm_up + pace.crowd);
    let (answer, calls) = match process.answer(due)? {
        Answer::Counting => {
            let before = server.calls()?;
            let answer = process.answer(due)?;
            (answer, difference(&before, &server.calls()?))
        }
        answer => (answer, Calls::new()),
    };
    match answer {
        Answer::Solo { p50_ns, p99_ns, pairs } => {
            Ok(Reading::from([("pair", p50_ns as f64 / 1e9), ("pair_p99", p99_ns as f64 / 1e9), ("samples", pairs as f64)]))
        }
        Answer::Many { pairs, seconds } => Ok(Reading::from([("pairs_per_second", pairs as f64 / seconds)])),
        Answer::Contend(seen) => {
            let reading = contended(&seen, entry, &calls);
            *commands = calls;
            Ok(reading)
        }
        other => Err(format!("it said {other:?}, which was not asked")),
    }
}

/// The figures of many tasks on one name.
fn contended(seen: &Contended, entry: &Entry, calls: &Calls) -> Reading {
    let mut reading = Reading::from([
        ("handovers_per_second", seen.handovers as f64 / seen.seconds),
        ("acquisitions_per_second", seen.acquisitions as f64 / seen.seconds),
        ("violations", seen.violations as f64),
        ("gave_up", seen.gave_up as f64),
        ("lost", seen.lost as f64),
        ("never_served", seen.per_task.iter().filter(|served| **served == 0).count() as f64),
    ]);
    let (most, least) = (seen.per_task.iter().max(), seen.per_task.iter().min());
    if let (Some(&most), Some(&least)) = (most, least)
        && most > 0
    {
        reading.insert("unfairness", most as f64 / least as f64); // somebody never served is an infinite one
    }
    for (key, nanos) in [("waiter", seen.gap_p50_ns), ("waiter_p99", seen.gap_p99_ns)] {
        reading.extend(nanos.map(|nanos| (key, nanos as f64 / 1e9)));
    }
    if calls.is_empty() {
        return reading;
    }
    let is_sent = |command: &str| entry.sends.is_empty() || entry.sends.contains(&command);
    let sent = calls.iter().filter(|(command, _)| is_sent(command)).map(|(_, count)| count);
    let (sent, all) = (sent.sum::<u64>() as f64, calls.values().sum::<u64>() as f64);
    if seen.handovers > 0 {
        reading.insert("requests_per_handover", sent / seen.handovers as f64);
        reading.insert("commands_per_handover", all / seen.handovers as f64);
    }
    if seen.acquisitions > 0 {
        reading.insert("requests_per_acquisition", sent / seen.acquisitions as f64);
    }
    reading
}

/// What was called in between.
fn difference(before: &Calls, after: &Calls) -> Calls {
    let since = |(command, count): (&String, &u64)| (command.clone(), count - before.get(command).unwrap_or(&0));
    after.iter().map(since).filter(|(_, count)| *count > 0).collect()
}

fn parse_count(text: &String) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| format!("{text} is no number of repetitions"))
}

fn parse_line(text: &str) -> Result<Line, String> {
    Line::ALL.iter().find(|line| line.key() == text).copied().ok_or_else(|| format!("there is no line {text}"))
}

fn parse_contender(text: &str) -> Result<String, String> {
    let keys = |store: &Store| catalogue::of(*store).iter().map(|entry| entry.key).collect::<Vec<_>>();
    let known = || Store::ALL.iter().map(|store| format!("on {}: {}", store.key(), keys(store).join(", ")));
    let there = Store::ALL.iter().any(|store| keys(store).contains(&text));
    let unknown = || format!("there is no contender {text}; there are, {}", known().collect::<Vec<_>>().join("; "));
    there.then(|| text.to_owned()).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Option<Settings>, String> {
        Settings::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_asked_for_is_understood() {
        let settings = parse("--quick --only tenure,rslock --lines solo,crowd --json x.json").unwrap().unwrap();
        assert_eq!((settings.repeat, settings.lines.as_slice()), (3, &[Line::Solo, Line::Crowd][..]));
        assert_eq!(settings.stores, Store::ALL);
        assert_eq!(settings.entries(Store::Redis).len(), 5);
        assert_eq!(settings.entries(Store::Postgres).len(), 6);
        assert_eq!(parse("--server mariadb").unwrap().unwrap().stores, [Store::MariaDb]);
        assert!(parse("--help").unwrap().is_none());
        for wrong in ["--server sqlite", "--repeat 0", "--lines sole", "--only nobody", "--json", "fast"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_what_was_sent_is_a_request() {
        let seen = Contended { seconds: 1.0, handovers: 10, per_task: vec![5, 5], ..Contended::default() };
        let entry = catalogue::of(Store::Redis).iter().find(|entry| entry.key == "redis-lock").unwrap();
        let calls = Calls::from([("set".to_owned(), 30), ("eval".to_owned(), 10), ("del".to_owned(), 10)]);
        let reading = contended(&seen, entry, &calls);
        assert_eq!((reading["requests_per_handover"], reading["commands_per_handover"]), (4.0, 5.0));
        assert_eq!(reading["unfairness"], 1.0);
    }
}
