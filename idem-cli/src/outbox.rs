//! The outbox: its backlog and its parked messages.

use anyhow::bail;
use idem_runtime::outbox::{MessageAuditFilter, Outbox, Parked};
use serde_json::json;

use crate::End;
use crate::arguments::{MessageAudit, MessageChange, Outbox as Arguments, OutboxCommand};
use crate::history::print_entries;
use crate::input::{is_confirmed, manual_change};
use crate::output::{self, duration, key, one_line, shown, time};
use crate::stdout::outln;
use crate::target::Connection;

/// Number of parked messages in one page.
const PAGE: u32 = 200;

pub(crate) async fn outbox(connection: &Connection, arguments: &Arguments) -> anyhow::Result<End> {
    let outbox = open(connection, arguments.outbox_table.as_deref())?;
    match &arguments.command {
        OutboxCommand::List {
            limit,
            payloads,
            form,
        } => list(&outbox, *limit, *payloads, form.json).await,
        OutboxCommand::Requeue(change) => {
            let Some(message) = find(&outbox, change).await? else {
                return Ok(End::Found);
            };
            let meaning = "deliver the message again: handlers may see it twice";
            if !change.by.yes && !is_confirmed(meaning)? {
                outln!("nothing was changed");
                return Ok(End::Failed);
            }
            let manual = manual_change(&change.by)?;
            Ok(changed(outbox.by(&manual).requeue_listed(&message).await?))
        }
        OutboxCommand::Discard(change) => {
            let Some(message) = find(&outbox, change).await? else {
                return Ok(End::Found);
            };
            let meaning = "delete the message: it is never delivered";
            if !change.by.yes && !is_confirmed(meaning)? {
                outln!("nothing was changed");
                return Ok(End::Failed);
            }
            let manual = manual_change(&change.by)?;
            Ok(changed(outbox.by(&manual).discard_listed(&message).await?))
        }
        OutboxCommand::Audit(arguments) => audit(&outbox, arguments).await,
    }
}

pub(crate) fn open(connection: &Connection, table: Option<&str>) -> anyhow::Result<Outbox> {
    let Some(database) = &connection.database else {
        bail!("a Redis store has no outbox: give the URL of the SQL database that has it");
    };
    let mut outbox = Outbox::new(database.clone());
    if let Some(schema) = &connection.schema {
        outbox = outbox.with_schema(schema)?;
    }
    if let Some(table) = table {
        outbox = outbox.with_table(table)?;
    }
    Ok(outbox)
}

async fn list(outbox: &Outbox, limit: u32, payloads: bool, as_json: bool) -> anyhow::Result<End> {
    let backlog = outbox.backlog().await?;
    let (mut parked, mut unreadable) = (Vec::<Parked>::new(), Vec::new());
    let mut after = None;
    while parked.len() < limit as usize {
        let missing = limit - u32::try_from(parked.len())?;
        let page = outbox.parked(after.as_ref(), missing.min(PAGE)).await?;
        parked.extend(page.messages);
        unreadable.extend(page.unreadable);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if as_json {
        let messages: Vec<_> = parked
            .iter()
            .map(|message| {
                let mut value = json!({
                    "key": message.key().as_str(),
                    "topic": message.topic(),
                    "ordering_key": message.ordering_key(),
                    "attempts": message.attempts(),
                    "enqueued_at": message.enqueued_at().as_micros(),
                    "parked_at": message.parked_at().as_micros(),
                    "last_error": message.last_error(),
                    "payload_bytes": message.payload().len(),
                });
                if payloads {
                    value["payload"] = message.payload().into();
                }
                value
            })
            .collect();
        let value = json!({
            "waiting": backlog.waiting,
            "parked": backlog.parked,
            "oldest": idem_runtime::record::micros(backlog.oldest),
            "messages": messages,
            "unreadable": output::json_of_unreadable(&unreadable),
        });
        output::print_json(&value);
        return Ok(End::Done);
    }
    outln!("waiting    {}", backlog.waiting);
    if backlog.waiting > 0 {
        outln!("oldest     {}", duration(backlog.oldest));
    }
    outln!("parked     {}", backlog.parked);
    if parked.is_empty() {
        output::print_unreadable("parked messages", &unreadable);
        return Ok(End::Done);
    }
    let rows = parked.iter().map(|message| {
        [
            key(message.key().as_str()),
            shown(message.topic()),
            shown(message.ordering_key().unwrap_or_default()),
            message.attempts().to_string(),
            time(message.parked_at()),
            one_line(message.last_error()),
        ]
    });
    let header = [
        "KEY",
        "TOPIC",
        "ORDERING KEY",
        "ATTEMPTS",
        "PARKED",
        "LAST ERROR",
    ];
    outln!("\n{}", output::table(header, rows));
    output::print_unreadable("parked messages", &unreadable);
    if payloads {
        outln!();
        for message in &parked {
            let key = key(message.key().as_str());
            outln!("{key}  {}", output::payload(message.payload().as_bytes()));
        }
    }
    Ok(End::Done)
}

async fn audit(outbox: &Outbox, arguments: &MessageAudit) -> anyhow::Result<End> {
    let entries = &arguments.entries;
    let filter = MessageAuditFilter {
        key: arguments.key.clone(),
        actor: entries.actor.clone(),
        within: entries.since,
    };
    let page = outbox.audit(&filter, &entries.page()).await?;
    let rows = page.entries.iter().map(|entry| {
        [
            time(entry.at),
            shown(entry.change.actor()),
            entry.action.as_str().to_owned(),
            key(entry.key.as_str()),
            shown(&entry.topic),
            entry.attempts.to_string(),
            shown(entry.change.reason()),
        ]
    });
    let header = [
        "TIME", "ACTOR", "CHANGE", "KEY", "TOPIC", "ATTEMPTS", "REASON",
    ];
    let as_json = page.entries.iter().map(|entry| {
        json!({
            "at": entry.at.as_micros(),
            "actor": entry.change.actor(),
            "reason": entry.change.reason(),
            "action": entry.action.as_str(),
            "key": entry.key.as_str(),
            "topic": entry.topic,
            "ordering_key": entry.ordering_key,
            "attempts": entry.attempts,
            "enqueued_at": entry.enqueued_at.as_micros(),
        })
    });
    let rest = (&page.unreadable[..], page.next.as_ref());
    Ok(print_entries(entries.form, header, rows, as_json, rest))
}

/// Finds the parked message with this key, and shows it.
async fn find(outbox: &Outbox, change: &MessageChange) -> anyhow::Result<Option<Parked>> {
    let mut after = None;
    loop {
        let page = outbox.parked(after.as_ref(), PAGE).await?;
        if let Some(message) = page
            .messages
            .iter()
            .find(|it| it.key().as_str() == change.key)
        {
            print_message(message);
            return Ok(Some(message.clone()));
        }
        after = page.next;
        if after.is_none() {
            outln!(
                "No parked message has this key: it was delivered, requeued or discarded, or it is waiting. `idem outbox \
                 list` shows those that are parked."
            );
            return Ok(None);
        }
    }
}

fn print_message(message: &Parked) {
    outln!("key         {}", key(message.key().as_str()));
    outln!("topic       {}", shown(message.topic()));
    if let Some(key) = message.ordering_key() {
        outln!("ordered by  {}", shown(key));
    }
    outln!("attempts    {}", message.attempts());
    outln!("enqueued    {}", time(message.enqueued_at()));
    outln!("parked      {}", time(message.parked_at()));
    outln!("last error  {}", one_line(message.last_error()));
}

fn changed(is_done: bool) -> End {
    if is_done {
        outln!("done");
        return End::Done;
    }
    outln!(
        "\nNothing was changed, because the message is no longer parked as it was shown: another operator requeued or \
         discarded it."
    );
    End::Changed
}
