//! Saved steps of a record.

use serde_json::{Value, json};

use crate::End;
use crate::arguments::Steps;
use crate::find::{absent, find};
use crate::output::{self, shown};
use crate::stdout::outln;
use crate::target::Connection;

pub(crate) async fn steps(connection: &Connection, steps: &Steps) -> anyhow::Result<End> {
    let Some(record) = find(&connection.idem, &steps.which.name).await? else {
        return absent(connection).await;
    };
    let found = connection
        .store
        .steps_of(&record.id, steps.payloads)
        .await?;
    let saved = &found.list;
    if steps.form.json {
        let saved: Vec<_> = saved
            .iter()
            .map(|step| {
                let mut value = json!({
                    "name": step.name,
                    "codec": step.codec,
                    "bytes": step.size,
                });
                if let Some(payload) = &step.payload {
                    value["payload"] = Value::from(output::plain_payload(payload));
                }
                value
            })
            .collect();
        let unreadable = output::json_of_unreadable(&found.unreadable);
        let id = record.id.to_string();
        output::print_json(&json!({ "id": id, "steps": saved, "unreadable": unreadable }));
        return Ok(End::Done);
    }
    if saved.is_empty() {
        outln!("no steps are saved for this record");
        output::print_unreadable("steps", &found.unreadable);
        return Ok(End::Done);
    }
    let rows = saved.iter().map(|step| {
        let result = match &step.payload {
            Some(payload) => output::payload(payload),
            None => "hidden, --payloads shows it".to_owned(),
        };
        [
            shown(&step.name),
            shown(&step.codec),
            step.size.to_string(),
            result,
        ]
    });
    outln!(
        "{}",
        output::table(["STEP", "CODEC", "BYTES", "RESULT"], rows)
    );
    output::print_unreadable("steps", &found.unreadable);
    Ok(End::Done)
}
