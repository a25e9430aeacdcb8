//! What was measured, for programs: one document with every repetition, in seconds, events a second and cores.

use serde_json::{Value, json};

use super::lines::Goal;
use super::results::{Results, Row};
use super::words;

/// The whole document, on one line as everything `--json` writes.
pub(super) fn document(results: &Results) -> String {
    let rows = results.rows();
    let findings = results.findings.iter();
    let document = json!({
        "bench": "tenure",
        "version": env!("CARGO_PKG_VERSION"),
        "debug_assertions": cfg!(debug_assertions),
        "machine": results.machine,
        "store": {
            "kind": results.store,
            "describe": results.describe,
            "findings": findings.map(|it| json!({ "what": it.what, "says": it.says })).collect::<Vec<_>>(),
        },
        "settings": results.settings,
        "seconds": results.took.as_secs_f64(),
        "warnings": words::warnings(results, &rows),
        "lines": rows.iter().map(line).collect::<Vec<_>>(),
    });
    serde_json::to_string(&document).expect("it is plain data") + "\n"
}

/// An infinite value (a task that was never served) is `null`, for want of a better word in JSON.
fn line(row: &Row) -> Value {
    json!({
        "name": row.line.key,
        "measure": row.line.measure,
        "title": format!("{}: {}", row.line.measure.title(), row.line.label),
        "unit": row.line.unit,
        "skipped": row.skipped,
        "summary": row.summary,
        "values": row.values,
        "samples": row.samples,
        "ratio_to": row.line.base.key(),
        "ratio_summary": row.ratio,
        "ratios": row.ratios,
        "goal": row.goal.map(goal),
        "goal_met": row.is_met(),
    })
}

fn goal(goal: Goal) -> Value {
    match goal {
        Goal::AtMost(most) => json!({ "value_at_most": most }),
        Goal::AtLeast(least) => json!({ "value_at_least": least }),
        Goal::RatioAtMost(most) => json!({ "ratio_at_most": most }),
        Goal::RatioAtLeast(least) => json!({ "ratio_at_least": least }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINES;
    use super::super::results::example;
    use super::*;

    #[tokio::test]
    async fn every_repetition_of_every_line() {
        let document: Value = serde_json::from_str(&document(&example().await)).unwrap();
        let lines = document["lines"].as_array().unwrap();
        assert_eq!(lines.len(), LINES.len());
        for line in lines {
            assert_eq!(line["values"].as_array().unwrap().len(), 3, "{line}");
        }
        assert_eq!(document["machine"]["cores"], super::super::machine::cores());
    }
}
