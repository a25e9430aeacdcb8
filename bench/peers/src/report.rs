//! What was measured, for people: who took part, one table a line, and where tenure stands.

use std::fmt::Write;

use crate::catalogue::{Entry, Side};
use crate::lines::Line;
use crate::results::{Circumstances, Results, Visits};
use crate::verdict;
use crate::words;

pub(crate) fn table(results: &Results, entries: &[&Entry], circumstances: &Circumstances) -> String {
    let mut out = String::new();
    put(&mut out, &heading(circumstances));
    put(&mut out, "\nWho takes part, and what it leaves out of what tenure does:\n");
    for entry in entries.iter().filter(|entry| Line::ALL.iter().any(|line| results.of(*line, entry.key).is_some())) {
        let _ = writeln!(out, "  {}: {}", entry.key, entry.what);
        let _ = writeln!(out, "      waits: {}", entry.waits);
        let _ = writeln!(out, "      leaves out {}", entry.leaves_out);
    }
    for line in Line::ALL.iter().filter(|line| results.visits.keys().any(|(there, _)| there == *line)) {
        put(&mut out, &of_line(results, entries, *line));
    }
    out
}

fn heading(circumstances: &Circumstances) -> String {
    let Circumstances { server, cores, processor, kernel, load_before, repetitions, quick, ttl_seconds, .. } = circumstances;
    let commit = circumstances.commit.as_deref().unwrap_or("?");
    let Circumstances { python, node, java, go, .. } = circumstances;
    let languages = [python, node, java, go].into_iter().flatten();
    let languages: String = languages.map(|version| format!("; {version}")).collect();
    let processor = processor.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let kernel = kernel.as_ref().map_or_else(String::new, |kernel| format!(", Linux {kernel}"));
    let load = load_before.map_or_else(String::new, |load| format!(", load before {load:.1}"));
    let quick = if *quick { ", quick" } else { "" };
    let mut out = format!(
        "tenure {commit} and its peers on {server}, ttl {ttl_seconds} s{languages}\n\
         {cores} cores{processor}{kernel}{load}\n\
         median (smallest – largest) of {repetitions} interleaved repetitions{quick}; \
         multiples are taken within each repetition\n"
    );
    if circumstances.debug_build {
        put(&mut out, "warning: a debug build: its figures say nothing about a release build\n");
    }
    if circumstances.was_busy() {
        put(&mut out, "warning: the machine was busy before this began: trust the multiples more than the times\n");
    }
    out
}

fn of_line(results: &Results, entries: &[&Entry], line: Line) -> String {
    let mut out = format!("\n{}\n", line.title());
    let mut rows = vec![heads(line)];
    let mut notes = Vec::new();
    for entry in entries {
        match results.of(line, entry.key) {
            Some(visits) => {
                if let Some(why) = visits.failure() {
                    let failed = visits.readings.iter().filter(|reading| reading.is_err()).count();
                    notes.push(format!("{}: no figure in {failed} of {} visits: {why}", entry.key, visits.readings.len()));
                }
                rows.push(cells(results, visits, entry, line));
            }
            None if entry.side == Side::Raw => {}
            None => notes.push(format!("{}: not here: {}", entry.key, entry.cannot)),
        }
    }
    put(&mut out, &aligned(&rows));
    notes.extend(entries.iter().filter_map(|entry| Some(remarks(results.of(line, entry.key)?, entry))).flatten());
    if matches!(line, Line::Handover | Line::Contended | Line::Crowd) {
        notes.push(exclusion(results, entries, line));
    }
    notes.extend(verdict::sentences(results, entries, line));
    for note in notes {
        let _ = writeln!(out, "  {note}");
    }
    out
}

fn heads(line: Line) -> Vec<String> {
    let mut heads = vec![String::new()];
    for (place, figure) in line.figures().iter().enumerate() {
        heads.push(figure.head.to_owned());
        if place == 0 {
            heads.push("multiple of".to_owned());
        }
    }
    heads
}

fn cells(results: &Results, visits: &Visits, entry: &Entry, line: Line) -> Vec<String> {
    let mut cells = vec![entry.key.to_owned()];
    for (place, figure) in line.figures().iter().enumerate() {
        let nothing = || "–".to_owned();
        cells.push(visits.summary(figure.key).map_or_else(nothing, |summary| words::spread(&summary, figure.unit)));
        if place == 0 {
            let base = (entry.base)(line);
            let ratio = results.ratio(line, figure, entry.key, base);
            cells.push(ratio.map_or_else(nothing, |ratio| format!("{} {base}", words::times(ratio.median))));
        }
    }
    cells
}

/// What a table's columns do not say.
fn remarks(visits: &Visits, entry: &Entry) -> Option<String> {
    let times = total(visits, "gave_up");
    (times > 0.0).then(|| format!("{}: gave up waiting {times} times and was asked again", entry.key))
}

/// A fast lock that lets two in is no lock.
fn exclusion(results: &Results, entries: &[&Entry], line: Line) -> String {
    let mut bad = Vec::new();
    for entry in entries {
        let Some(visits) = results.of(line, entry.key) else { continue };
        for (figure, what) in [("violations", "two were inside"), ("lost", "a hold was lost")] {
            let times = total(visits, figure);
            if times > 0.0 {
                bad.push(format!("{}: {what} {times} times", entry.key));
            }
        }
    }
    match bad.is_empty() {
        true => "exclusion: never two inside and no hold lost, with any of them".to_owned(),
        false => format!("exclusion: BROKEN: {}", bad.join("; ")),
    }
}

fn total(visits: &Visits, figure: &str) -> f64 {
    visits.values(figure).iter().sum()
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        // Names to the left, numbers to the right.
        let padded = cells
            .map(|(place, (cell, width))| if place == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
        let _ = writeln!(out, "  {}", padded.collect::<Vec<_>>().join("  ").trim_end());
    }
    out
}

fn put(out: &mut String, text: &str) {
    out.push_str(text);
}
