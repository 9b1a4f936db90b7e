//! The outbox: its backlog and its parked messages.

use axum::response::Response;

use super::access::Access;

#[cfg(not(all(
    feature = "outbox",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
)))]
pub(super) async fn outbox(access: Access) -> Response {
    super::layout::not_found(&access)
}

#[cfg(all(
    feature = "outbox",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
))]
pub(super) async fn outbox(access: Access) -> Response {
    use maud::html;

    use super::layout::{Page, failure, not_found};
    use crate::store::operator::text::{duration, shown, time};

    /// Number of parked messages on the page.
    const LIMIT: u32 = 100;

    let Some(outbox) = access
        .settings()
        .outbox
        .clone()
        .filter(|_| access.shows_outbox())
    else {
        return not_found(&access);
    };
    let read = async {
        let backlog = outbox.backlog().await?;
        Ok::<_, crate::error::StoreError>((backlog, outbox.parked(None, LIMIT).await?))
    };
    let (backlog, parked) = match access.read(read).await {
        Ok(read) => read,
        Err(error) => return failure(&access, &error),
    };
    Page::new(&access, "Outbox").live().with(&html! {
        section { dl {
            dt { "Waiting" } dd { (backlog.waiting) }
            dt { "Oldest" } dd { (duration(backlog.oldest)) }
            dt { "Parked" } dd { (backlog.parked) }
        } }
        section {
            h2 { "Parked messages" }
            @if parked.is_empty() { p { "No message is parked." } } @else { div.scroll { table {
                caption { (parked.len()) " messages, in the order of enqueuing" }
                thead { tr {
                    th { "Key" } th { "Topic" } th { "Ordering key" } th.number { "Attempts" } th { "Parked" }
                    th { "Last error" }
                } }
                tbody { @for message in &parked { tr {
                    td.key { (shown(message.key().as_str())) }
                    td { (shown(message.topic())) }
                    td { (shown(message.ordering_key().unwrap_or_default())) }
                    td.number { (message.attempts()) }
                    td { (time(message.parked_at())) }
                    td {
                        @if access.payloads().is_some() { (shown(message.last_error())) } @else { "hidden" }
                    }
                } } }
            } } }
            p.quiet { "`idem outbox requeue` and `idem outbox discard` change a message." }
        }
    })
}
