//! Batches of messages, delivered to the function, and what becomes of them.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::ensure;
use idem_examples::Table;
use idem_examples::lambda::{Answer, Function};
use serde_json::{Value, json};

use crate::deposits::{Bank, Partner};

/// Time limit of the function.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Runs the story. Fails if a count is wrong.
pub(crate) async fn tell() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let bank = Bank::open(folder.path()).await?;
    let partner = Partner::new(folder.path());
    let path = folder.path().to_string_lossy().into_owned();
    let mut story = Story {
        function: Function::new(["queue", path.as_str()], TIME_LIMIT),
        table: Table::new([("what is delivered", 48), ("answer", 16), ("rows", 4)]),
        bank,
    };

    let first = batch(0, &[]);
    story.deliver("ten messages", &first, &[], 10..=10).await?;
    story
        .deliver("the same ten, once more", &first, &[], 10..=10)
        .await?;

    let mut malformed = batch(10, &[]);
    malformed[4]["body"] = json!("{");
    story
        .deliver("ten, one of them malformed", &malformed, &["14"], 19..=19)
        .await?;

    partner.set_down(true)?;
    let slow = batch(20, &["23", "27"].map(|id| (id, "slow")));
    story
        .deliver("ten, two of them never end", &slow, &["23", "27"], 27..=27)
        .await?;
    partner.set_down(false)?;
    let failed = [slow[3].clone(), slow[7].clone()];
    story
        .deliver("those two, in the next invocation", &failed, &[], 29..=29)
        .await?;

    partner.set_down(true)?;
    let stuck = batch(30, &[("39", "stuck")]);
    let killed = story.function.invoke(event(&stuck)).await?;
    ensure!(killed == Answer::Killed, "{killed:?}");
    let rows = story.rows().await?;
    ensure!((30..=38).contains(&rows), "{rows} rows after the kill");
    let text = "ten, the last blocks its thread";
    story.table.line([text, "killed", &rows.to_string()]);
    partner.set_down(false)?;
    story
        .deliver("all ten, in another process", &stuck, &[], 39..=39)
        .await?;
    story.function.end().await?;
    println!(
        "\n40 messages in 7 batches, one killed: 39 deposits are booked, each of them once.\n"
    );
    Ok(())
}

struct Story {
    function: Function,
    table: Table<3>,
    bank: Bank,
}

impl Story {
    /// Delivers messages, and checks which of them the answer reports as failed.
    async fn deliver(
        &mut self,
        text: &str,
        messages: &[Value],
        failed: &[&str],
        rows: RangeInclusive<i64>,
    ) -> anyhow::Result<()> {
        let answer = self.function.invoke(event(messages)).await?;
        let failures: Vec<Value> = failed
            .iter()
            .map(|id| json!({ "itemIdentifier": id }))
            .collect();
        let expected = Answer::Response(json!({ "batchItemFailures": failures }));
        ensure!(answer == expected, "{text}: {answer:?}");
        let now = self.rows().await?;
        ensure!(rows.contains(&now), "{text}: {now} rows");
        let answer = match failed {
            [] => "done".to_owned(),
            failed => format!("{} failed", failed.join(" and ")),
        };
        self.table.line([text, &answer, &now.to_string()]);
        Ok(())
    }

    /// Returns the number of rows, each of which must be of another message.
    async fn rows(&self) -> anyhow::Result<i64> {
        let (rows, messages) = self.bank.booked().await?;
        ensure!(rows == messages, "{rows} rows of {messages} messages");
        Ok(rows)
    }
}

/// Ten messages from this id on, some of them with an account that is no ordinary one.
fn batch(first: u32, special: &[(&str, &str)]) -> Vec<Value> {
    let message = |id: u32| {
        let id = id.to_string();
        let account = special.iter().find(|(of, _)| *of == id);
        let account = account.map_or("ann", |(_, account)| account);
        json!({
            "messageId": id,
            "body": json!({ "account": account, "cents": 500 }).to_string(),
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:deposits",
        })
    };
    (first..first + 10).map(message).collect()
}

fn event(messages: &[Value]) -> Value {
    json!({ "Records": messages })
}
