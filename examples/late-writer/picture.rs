//! The history as a picture: a panel for each run, a lane for each worker and one for the store, time to the right.
//!
//! Written by hand, in the style of `tenure bench --plot`: colours come from one style sheet with a dark twin.

use std::fmt::Write;

use crate::history::{Event, Run, What, short};

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 28.0;
/// Where time begins and ends; names are to the left.
const LEFT: f64 = 150.0;
const RIGHT: f64 = WIDTH - MARGIN;
const LANE: f64 = 62.0;
const BAR: f64 = 22.0;

pub fn svg(runs: &[&Run]) -> String {
    let longest = runs.iter().map(|run| run.seconds(run.events.last().expect("something happened"))).fold(0.1, f64::max);
    let mut canvas = Canvas { out: String::new(), y: MARGIN + 14.0, per_second: (RIGHT - LEFT - 40.0) / longest };
    canvas.text(MARGIN, canvas.y, "title", "A late write, with a fence and without");
    canvas.y += 22.0;
    canvas.text(
        MARGIN,
        canvas.y,
        "dim",
        &format!("One lock in {}, two worker processes, one HTTP store.", shortened(&runs[0].store)),
    );
    for run in runs {
        canvas.panel(run, longest);
    }
    canvas.legend();
    let height = canvas.y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"A late write, with a fence and without\">\n<style>{STYLE}</style>\n<defs><pattern id=\"hatch\" \
         width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line y2=\"7\" class=\"hatch\"/>\
         </pattern></defs>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{}</svg>\n",
        canvas.out
    )
}

const STYLE: &str = "
text { font-family: 'Inter', 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif; font-size: 12px; fill: #3d444d }
.paper { fill: #ffffff }
.title { font-size: 19px; font-weight: 600; fill: #1f2328 }
.heading { font-size: 14px; font-weight: 600; fill: #1f2328 }
.dim, .tick { fill: #6e7781 }
.tick { font-size: 11px }
.end { text-anchor: end } .middle { text-anchor: middle }
.grid { stroke: #e3e7eb; stroke-width: 1 }
.one { fill: #2f6fb3 } .two { fill: #bc6c1a } .none { fill: #8c959f; fill-opacity: 0.18 }
.faint { fill-opacity: 0.22 }
.wait { fill: none; stroke: #bc6c1a; stroke-width: 1.2; stroke-dasharray: 3 3 }
.hatch { stroke: #8c959f; stroke-width: 2.4; stroke-opacity: 0.75 }
.stopped { fill: url(#hatch); stroke: #8c959f; stroke-width: 1 }
.way { stroke-width: 1.6; fill: none } .way.one { stroke: #2f6fb3 } .way.two { stroke: #bc6c1a }
.cross { stroke: #b3402f; stroke-width: 2.6; fill: none }
.in { fill: #ffffff; font-weight: 600 }
.bad { fill: #b3402f; font-weight: 600 } .good { fill: #2d7d46; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #c4ccd4 }
.paper { fill: #14181d }
.title, .heading { fill: #eef2f6 }
.dim, .tick { fill: #8f99a3 }
.grid { stroke: #2b323a }
.one { fill: #4a90d9 } .two { fill: #d08a3e } .wait { stroke: #d08a3e }
.way.one { stroke: #6cb0f5 } .way.two { stroke: #e0a458 }
.cross { stroke: #f0806e }
.in { fill: #14181d }
.bad { fill: #f0806e } .good { fill: #62c07f }
}
";

struct Canvas {
    out: String,
    y: f64,
    per_second: f64,
}

impl Canvas {
    fn panel(&mut self, run: &Run, longest: f64) {
        self.y += 44.0;
        let (title, verdict, class) = match (run.is_fenced, run.is_overwritten()) {
            (false, true) => ("Without a fence", "the late write is taken, and what worker 2 wrote is gone", "bad"),
            (true, false) => ("With the fence", "the late write is refused, and what worker 2 wrote stays", "good"),
            (_, true) => ("With the fence", "what worker 2 wrote is gone, which should not be", "bad"),
            (_, false) => ("Without a fence", "what worker 2 wrote stays, by luck", "good"),
        };
        self.text(MARGIN, self.y, "heading", title);
        self.text(MARGIN + 150.0, self.y, class, verdict);
        self.y += 20.0;
        let top = self.y;
        let lanes = [top + 30.0, top + 30.0 + LANE, top + 30.0 + 2.0 * LANE];
        let bottom = lanes[2] + BAR + 12.0;
        self.axis(longest, top, bottom);
        for (lane, name) in lanes.iter().zip(["worker 1", "worker 2", "the store"]) {
            self.text(MARGIN, lane + 15.5, "", name);
        }
        self.worker_one(run, lanes[0]);
        self.worker_two(run, lanes[1]);
        self.store(run, lanes[2], longest);
        self.writes(run, lanes);
        self.y = bottom + 20.0;
    }

    fn axis(&mut self, longest: f64, top: f64, bottom: f64) {
        let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0].into_iter().find(|step| longest / step <= 8.0).unwrap_or(30.0);
        let mut at = 0.0;
        while at <= longest + step / 2.0 && self.x(at) <= RIGHT {
            let x = self.x(at);
            let _ =
                writeln!(self.out, "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" class=\"grid\"/>");
            self.text(x, bottom + 14.0, "tick middle", &format!("{at} s"));
            at = ((at + step) * 10.0).round() / 10.0;
        }
    }

    /// The window in which it may trust its hold, and the time in which it stands still.
    fn worker_one(&mut self, run: &Run, y: f64) {
        let at = |is: fn(&What) -> bool| run.events.iter().find(|event| event.worker == 1 && is(&event.what));
        let held = at(|what| matches!(what, What::Held { .. }));
        let checked = at(|what| matches!(what, What::Checked { .. }));
        let (Some(held), Some(checked)) = (held, checked) else { return };
        let (Some(stopped), Some(goes_on)) =
            (at(|what| matches!(what, What::Stopped)), at(|what| matches!(what, What::GoesOn)))
        else {
            return;
        };
        let What::Checked { left } = checked.what else { return };
        let until = run.seconds(checked) + left.as_secs_f64();
        self.bar(run.seconds(held), until, y, BAR, "one faint");
        self.bar(run.seconds(held), run.seconds(stopped), y, BAR, "one");
        self.bar(run.seconds(stopped), run.seconds(goes_on), y + 4.0, BAR - 8.0, "stopped");
        let x = self.x(until);
        let _ = writeln!(self.out, "<path d=\"M{x:.1} {:.1}v{:.1}\" class=\"way one\"/>", y - 4.0, BAR + 8.0);
        self.text(x + 6.0, y - 6.0, "tick", "its lease ends: trusted until here");
        self.text(self.x(run.seconds(goes_on)) + 8.0, y + 15.5, "tick", "goes on, and writes");
        if let What::Held { token } = held.what {
            self.text(
                self.x(run.seconds(held)),
                y - 6.0,
                "tick",
                &format!("holds, token {}; checks, and is stopped", short(token)),
            );
        }
    }

    fn worker_two(&mut self, run: &Run, y: f64) {
        let at = |is: fn(&What) -> bool| run.events.iter().find(|event| event.worker == 2 && is(&event.what));
        let (Some(asked), Some(held)) =
            (at(|what| matches!(what, What::Asked)), at(|what| matches!(what, What::Held { .. })))
        else {
            return;
        };
        let Some(released) = at(|what| matches!(what, What::Released)) else { return };
        self.bar(run.seconds(asked), run.seconds(held), y + 4.0, BAR - 8.0, "wait");
        self.text(self.x(run.seconds(asked)), y - 6.0, "tick", "waits in line");
        self.bar(run.seconds(held), run.seconds(released), y, BAR, "two");
        if let What::Held { token } = held.what {
            self.text(self.x(run.seconds(held)) + 8.0, y + 15.5, "in", &format!("token {}", short(token)));
        }
    }

    /// Whose text is in it, from when to when.
    fn store(&mut self, run: &Run, y: f64, longest: f64) {
        let writes: Vec<&Event> = run.events.iter().filter(|event| is_taken(&event.what)).collect();
        let first = writes.first().map_or(longest, |event| run.seconds(event));
        self.bar(0.0, first, y, BAR, "none");
        self.text(self.x(0.0) + 8.0, y + 15.5, "tick", "empty");
        for (index, event) in writes.iter().enumerate() {
            let end = writes.get(index + 1).map_or(longest, |next| run.seconds(next));
            let begin = run.seconds(event);
            self.bar(begin, end, y, BAR, class(event.worker));
            let middle = (self.x(begin) + self.x(end)) / 2.0;
            self.text(middle, y + 15.5, "in middle", &format!("by worker {}", event.worker));
        }
    }

    fn writes(&mut self, run: &Run, lanes: [f64; 3]) {
        for event in &run.events {
            let What::Wrote { status, .. } = &event.what else { continue };
            let (x, from) = (self.x(run.seconds(event)), lanes[usize::from(event.worker) - 1] + BAR);
            let to = if is_taken(&event.what) { lanes[2] } else { lanes[2] - 12.0 };
            let class = class(event.worker);
            let _ = writeln!(self.out, "<path d=\"M{x:.1} {from:.1}V{to:.1}\" class=\"way {class}\"/>");
            if is_taken(&event.what) {
                let _ = writeln!(self.out, "<path d=\"M{x:.1} {to:.1}l-4.5 -8h9z\" class=\"{class}\"/>");
            } else {
                let _ =
                    writeln!(self.out, "<path d=\"M{:.1} {:.1}l12 12m0 -12l-12 12\" class=\"cross\"/>", x - 6.0, to - 6.0);
            }
            let (words, kind, beside) = match (is_taken(&event.what), event.worker) {
                (true, 1) => ("late write", "bad", 10.0),
                (true, _) => ("write", "tick end", -10.0),
                (false, _) => ("late write", "good", 12.0),
            };
            self.text(x + beside, lanes[2] - 9.0, kind, &format!("{words}: {status}"));
        }
    }

    fn legend(&mut self) {
        self.y += 24.0;
        let words = [
            "Blue: the first worker, and what it wrote; pale where it may trust its hold. Hatched: it is stopped, between its look at the",
            "hold and its write. Orange: the second worker, and what it wrote. A worker that is stopped cannot look: only the store can refuse.",
        ];
        for line in words {
            self.text(MARGIN, self.y, "dim tick", line);
            self.y += 15.0;
        }
        self.y -= 15.0;
    }

    fn bar(&mut self, from: f64, to: f64, y: f64, height: f64, class: &str) {
        let (x, width) = (self.x(from), (self.x(to) - self.x(from)).max(2.0));
        let _ = writeln!(
            self.out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" class=\"{class}\"/>"
        );
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(self.out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>");
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds * self.per_second
    }
}

fn is_taken(what: &What) -> bool {
    matches!(what, What::Wrote { why: None, .. })
}

fn class(worker: u8) -> &'static str {
    if worker == 1 { "one" } else { "two" }
}

/// A store's name without the folders that lead to it.
fn shortened(store: &str) -> String {
    match store.rsplit_once('/') {
        Some((before, last)) if before.contains('/') => format!("{}:…/{last}", store.split(':').next().unwrap_or_default()),
        _ => store.to_owned(),
    }
}
