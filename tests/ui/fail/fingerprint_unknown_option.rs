//! Unknown options: a misspelled one gets a suggestion, any other one the list.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
#[fingerprint(nmae = "charge")]
struct Charge {
    #[fingerprint(skp)]
    trace: String,
    #[fingerprint(flatten)]
    details: String,
    #[fingerprint(ignore)]
    span: String,
    #[fingerprint(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Fingerprint)]
#[fingerprint(rename_all = "camelCase")]
enum Event {
    #[fingerprint(renam = "charged")]
    Charged,
}

fn main() {}
