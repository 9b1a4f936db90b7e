//! Commands that only read.

use std::pin::pin;

use idem_runtime::operator::text::keys_meant;
use idem_runtime::operator::{AgeOrder, Explanation};
use idem_runtime::record::{OwnerLabel, Record, RecordState};
use idem_runtime::store::{Attempts, Cursor, Filter, Page, PageRequest};
use serde_json::json;

use crate::End;
use crate::arguments::{Explain, List, Show, Stuck};
use crate::find::{absent, find, scope_filter};
use crate::output::{self, key, shown, time_from};
use crate::request::{self, Comparison};
use crate::stdout::{errln, outln};
use crate::target::{Connection, Handle};
use crate::{history, search};

pub(crate) async fn list(connection: &Connection, list: &List) -> anyhow::Result<End> {
    let idem = &connection.idem;
    let scope = match list.scope.is_empty() {
        true => None,
        false => Some(scope_filter(&list.scope, list.recursive)?),
    };
    let filter = Filter {
        state: list.state.map(RecordState::from),
        operation: list.operation.clone(),
        older_than: list.older_than,
        newer_than: list.newer_than,
        // The last one is the key in the header's form, or the text itself.
        key: list.key.as_deref().and_then(|it| keys_meant(it).pop()),
        scope,
        owner: list.owner.clone(),
        expired: list.expired,
        ..Filter::default()
    };
    let order = match (list.oldest, list.newest) {
        (true, _) => Some(AgeOrder::OldestFirst),
        (_, true) => Some(AgeOrder::NewestFirst),
        _ => None,
    };
    let after = list.after.as_deref().map(Cursor::new);
    let is_search = filter.key.is_some() || filter.scope.is_some() || filter.owner.is_some();
    if is_search && order.is_none() {
        let how = search::agree_to_scan(connection, &filter, list.scan).await?;
        errln!("searched: {how}");
    }
    let page = match &list.condition {
        None => {
            let look = search::page(connection, &filter, order, after, list.limit);
            slow_without_index(connection, &filter, look).await?
        }
        Some(condition) => {
            let meets = |record: &Record| condition.matches(record);
            let filter = condition.filter();
            search::say_how(connection, &filter).await?;
            let look = matching(idem, &filter, list.limit, meets);
            slow_without_index(connection, &filter, look).await?
        }
    };
    refuse_if_all_is_empty(connection, &page).await?;
    print_page(&page, list.form.json);
    let is_full = page.records.len() >= list.limit as usize;
    if list.condition.is_some() && is_full && !list.form.json {
        outln!("\nthe limit is reached, so there may be more: --limit");
    }
    let is_selection = list.condition.is_some() || filter != Filter::default();
    Ok(
        match page.records.is_empty() && page.next.is_none() && is_selection {
            true => End::Found,
            false => End::Done,
        },
    )
}

pub(crate) async fn stuck(connection: &Connection, stuck: &Stuck) -> anyhow::Result<End> {
    let idem = &connection.idem;
    let filter = Filter {
        stuck: true,
        operation: stuck.operation.clone(),
        ..Filter::default()
    };
    let look = page(idem, &filter, None, stuck.limit);
    let mut page = slow_without_index(connection, &filter, look).await?;
    if let Some(attempts) = stuck.attempts {
        for state in [RecordState::Running, RecordState::Released] {
            let filter = Filter {
                state: Some(state),
                operation: stuck.operation.clone(),
                ..Filter::default()
            };
            let found = u32::try_from(page.records.len())?;
            // The listing before has the lapsed ones.
            let tried = |it: &Record| it.attempt >= attempts && !it.is_stuck();
            let rest = stuck.limit.saturating_sub(found);
            let tried = matching(idem, &filter, rest, tried).await?;
            page.records.extend(tried.records);
            for unreadable in tried.unreadable {
                if !page.unreadable.contains(&unreadable) {
                    page.unreadable.push(unreadable);
                }
            }
        }
    }
    refuse_if_all_is_empty(connection, &page).await?;
    print_page(&page, stuck.form.json);
    // A record that cannot be read needs somebody, too.
    Ok(
        match page.records.is_empty() && page.unreadable.is_empty() {
            true => End::Done,
            false => End::Found,
        },
    )
}

/// Refuses an empty page of a store in which nothing is of idem's.
async fn refuse_if_all_is_empty(connection: &Connection, page: &Page) -> anyhow::Result<()> {
    match page.records.is_empty() && page.unreadable.is_empty() && page.next.is_none() {
        true => connection.refuse_if_nothing_is_there().await,
        false => Ok(()),
    }
}

/// Says after a while why a search takes so long.
async fn slow_without_index<T>(
    connection: &Connection,
    filter: &Filter,
    look: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut look = pin!(look);
    tokio::select! {
        found = &mut look => return found,
        () = tokio::time::sleep(search::PATIENCE) => {}
    }
    if search::how(connection, filter).await? == search::How::Scan {
        match connection.database {
            Some(_) if filter.stuck => errln!(
                "reading the whole table, 10,000 records at a time: `idem migrate --index stuck` creates an index for this"
            ),
            Some(_) => errln!("reading the whole table, 10,000 records at a time"),
            None => errln!("scanning all keys of the database, and reading the records among them"),
        }
    }
    look.await
}

pub(crate) async fn show(connection: &Connection, show: &Show) -> anyhow::Result<End> {
    let idem = &connection.idem;
    let Some(record) = find(idem, &show.which.name).await? else {
        return absent(connection).await;
    };
    let owner = history::owner_of(idem, &record).await?;
    if show.form.json {
        let mut value = output::json(&record, show.payload);
        value["owner"] = owner.as_ref().map(OwnerLabel::as_str).into();
        output::print_json(&value);
        return Ok(End::Done);
    }
    print_record(&record);
    if let Some(owner) = owner {
        outln!("owner       {}", shown(owner.as_str()));
    }
    if let Some(payload) = &record.payload {
        match show.payload {
            true => outln!("result      {}", output::payload(&payload.bytes)),
            false => outln!("result      hidden, --payload shows it"),
        }
    }
    Ok(End::Done)
}

pub(crate) async fn explain(connection: &Connection, explain: &Explain) -> anyhow::Result<End> {
    let idem = &connection.idem;
    let Some(record) = find(idem, &explain.which.name).await? else {
        return absent(connection).await;
    };
    let Some((record, attempts)) = history::with_attempts(idem, record).await? else {
        return absent(connection).await;
    };
    let set_by = idem.records().set_manually(&record).await;
    let set_by = set_by.unwrap_or_else(|error| {
        errln!(
            "warning: the audit cannot be read, so who set the outcome is not known: {}",
            output::error(&error)
        );
        None
    });
    let mut explanation = Explanation::of(&record);
    if let Some(entry) = &set_by {
        explanation = explanation.with_manual_change(&record, entry);
    }
    let members = attempts.as_ref().and_then(|it| it.members.as_ref());
    let request = request::compare(explain, &record.fingerprint, members)?;
    let owner = attempts.as_ref().and_then(Attempts::owner);
    if explain.form.json {
        let commands = explanation.commands.iter().map(|(name, _)| *name);
        let value = json!({
            "record": output::json(&record, false),
            "owner": owner.map(OwnerLabel::as_str),
            "request": request.as_ref().map(Comparison::word),
            "members": request.as_ref().and_then(Comparison::members),
            "set_manually": set_by.as_ref().map(history::entry_json),
            "happened": explanation.happened,
            "answer": explanation.answer,
            "next": explanation.next,
            "commands": commands.collect::<Vec<_>>(),
        });
        output::print_json(&value);
        return Ok(End::Done);
    }
    outln!("{}", explanation.happened);
    if let Some(owner) = owner {
        outln!(
            "The owner of attempt {} is {}.",
            record.attempt,
            shown(owner.as_str())
        );
    }
    outln!("{}", explanation.answer);
    outln!("{}", explanation.next);
    if let Some(comparison) = request {
        outln!("{comparison}");
    }
    if explanation.commands.is_empty() {
        outln!("\nNo command applies while the lease is valid.");
        return Ok(End::Done);
    }
    outln!("\nYou may:");
    for (command, meaning) in explanation.commands {
        outln!("  idem {command:<9} {meaning}");
    }
    outln!("on the record with --id {}", record.id);
    Ok(End::Done)
}

/// Prints what a record holds, except for its result.
pub(crate) fn print_record(record: &Record) {
    let now = record.read_at;
    outln!("operation   {}", shown(record.identity.operation.as_str()));
    outln!("key         {}", key(record.identity.key.as_str()));
    if !record.identity.scope.is_none() {
        outln!("scope       {}", shown(record.identity.scope.as_str()));
    }
    outln!("state       {}", output::state(record));
    outln!("attempt     {}", record.attempt);
    outln!("on crash    {}", record.on_crash.as_str());
    outln!("claimed     {}", time_from(record.first_claimed_at, now));
    if matches!(
        record.state,
        RecordState::Running | RecordState::Interrupted
    ) {
        outln!("lease until {}", time_from(record.lease_until, now));
    }
    if let Some(ended) = record.ended_at {
        outln!("ended       {}", time_from(ended, now));
    }
    match record.expires_at() {
        Some(at) => outln!("expires     {}", time_from(at, now)),
        None => outln!("expires     never, before it is resolved"),
    }
    outln!("retention   {}", output::duration(record.retention));
    outln!("token       {}", record.fencing_token.number());
    outln!("id          {}", record.id);
    if let Some(payload) = &record.payload {
        outln!(
            "codec       {}, {} bytes",
            shown(&payload.codec),
            payload.bytes.len()
        );
    }
}

/// Reads records until the page is full or there are no more: a store may return short pages.
pub(crate) async fn page(
    idem: &Handle,
    filter: &Filter,
    mut after: Option<Cursor>,
    limit: u32,
) -> anyhow::Result<Page> {
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    loop {
        let missing = limit - u32::try_from(records.len())?;
        let request = PageRequest {
            limit: missing,
            after,
        };
        let page = idem.records().list(filter, &request).await?;
        records.extend(page.records);
        unreadable.extend(page.unreadable);
        after = page.next;
        if after.is_none() || records.len() >= limit as usize {
            return Ok(Page {
                records,
                unreadable,
                next: after,
            });
        }
    }
}

/// Reads records until enough of them meet a condition that the store cannot check, or until there are no more.
async fn matching(
    idem: &Handle,
    filter: &Filter,
    limit: u32,
    meets: impl Fn(&Record) -> bool,
) -> anyhow::Result<Page> {
    const AT_ONCE: u32 = 1000;
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let mut request = PageRequest {
        limit: AT_ONCE,
        after: None,
    };
    let mut progress = search::Progress::begin();
    while found.len() < limit as usize {
        let page = idem.records().list(filter, &request).await?;
        found.extend(page.records.into_iter().filter(|it| meets(&it.record)));
        progress.page(found.len());
        unreadable.extend(page.unreadable);
        request.after = page.next;
        if request.after.is_none() {
            break;
        }
    }
    found.truncate(limit as usize);
    Ok(Page {
        records: found,
        unreadable,
        next: None,
    })
}

fn print_page(page: &Page, as_json: bool) {
    if as_json {
        let records: Vec<_> = page.records.iter().map(output::json_of_listed).collect();
        let next = page.next.as_ref().map(Cursor::as_str);
        let unreadable = output::json_of_unreadable(&page.unreadable);
        output::print_json(&json!({ "records": records, "unreadable": unreadable, "next": next }));
        return;
    }
    if page.records.is_empty() {
        outln!("no records");
    } else {
        outln!("{}", output::table_of_records(&page.records));
    }
    output::print_unreadable("records", &page.unreadable);
    if let Some(next) = &page.next {
        outln!("\nthere are more: --after {}", shown(next.as_str()));
    }
}
