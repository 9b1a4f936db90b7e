//! Saved steps of a record.

use serde_json::{Value, json};

use crate::End;
use crate::arguments::Steps;
use crate::find::{find, print_absent};
use crate::output::{self, shown};
use crate::target::Connection;

pub(crate) async fn steps(connection: &Connection, steps: &Steps) -> anyhow::Result<End> {
    let Some(record) = find(&connection.idem, &steps.which.name).await? else {
        print_absent();
        return Ok(End::Found);
    };
    let saved = connection
        .store
        .steps_of(&record.id, steps.payloads)
        .await?;
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
        output::print_json(&json!({ "id": record.id.to_string(), "steps": saved }));
        return Ok(End::Done);
    }
    if saved.is_empty() {
        println!("no steps are saved for this record");
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
    println!(
        "{}",
        output::table(["STEP", "CODEC", "BYTES", "RESULT"], rows)
    );
    Ok(End::Done)
}
