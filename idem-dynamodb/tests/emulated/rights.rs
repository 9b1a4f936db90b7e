//! The policy allows what the store does, and no more; the templates describe the table that the API creates.

use std::collections::BTreeSet;
use std::time::Duration;

use idem_dynamodb::{CLOUDFORMATION, POLICY, TERRAFORM};
use idem_store::store::{AuditFilter, AuditStore, Filter, ManualChange, PageRequest};
use idem_store::{Store as _, Timestamp};
use serde_json::Value as Json;

use crate::emulator::{Emulator, Requests};
use crate::time::{fresh, granted, outcome, owner};

/// Rights that a request with this name needs.
fn rights(request: &str) -> &'static [&'static str] {
    match request {
        "BatchGetItem" => &["dynamodb:BatchGetItem"],
        "DeleteItem" => &["dynamodb:DeleteItem"],
        "GetItem" => &["dynamodb:GetItem"],
        "PutItem" => &["dynamodb:PutItem"],
        "Query" => &["dynamodb:Query"],
        "Scan" => &["dynamodb:Scan"],
        // A transaction needs the rights of its parts, and has none of its own.
        "TransactWriteItems" => &["dynamodb:PutItem", "dynamodb:UpdateItem"],
        "UpdateItem" => &["dynamodb:UpdateItem"],
        other => panic!("the store sends {other}"),
    }
}

/// Compares the policy with the requests that all methods of a store have sent.
pub(crate) fn check_policy(requests: &[String]) -> anyhow::Result<()> {
    let used = requests.iter().flat_map(|it| rights(it));
    let used: BTreeSet<_> = used.map(|it| (*it).to_owned()).collect();
    let policy: Json = serde_json::from_str(POLICY)?;
    let statements = policy["Statement"].as_array().into_iter().flatten();
    let actions = statements.flat_map(|it| it["Action"].as_array().into_iter().flatten());
    let allowed: BTreeSet<_> = actions
        .filter_map(|it| Some(it.as_str()?.to_owned()))
        .collect();
    assert_eq!(allowed, used);
    for right in &allowed {
        assert!(CLOUDFORMATION.contains(&format!("- {right}\n")), "{right}");
        assert!(TERRAFORM.contains(&format!("\"{right}\",\n")), "{right}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dynalite: cargo xtask test runs it"]
async fn the_templates_describe_the_table_of_the_api() -> anyhow::Result<()> {
    let dynalite = Emulator::dynalite().await?;
    let (store, _) = dynalite.store().await?;
    // A second time changes nothing.
    store.create_table().await?;
    let client = dynalite.client(&Requests::default());
    let names = client
        .list_tables()
        .send()
        .await?
        .table_names
        .unwrap_or_default();
    let [name] = &names[..] else {
        panic!("{names:?}")
    };
    let table = client.describe_table().table_name(name).send().await?;
    let table = table.table.expect("the table is there");

    for attribute in table.attribute_definitions() {
        let (name, kind) = (
            attribute.attribute_name(),
            attribute.attribute_type().as_str(),
        );
        let yaml = format!("- AttributeName: {name}\n          AttributeType: {kind}\n");
        assert!(CLOUDFORMATION.contains(&yaml), "{yaml}");
        let hcl = format!("attribute {{\n    name = \"{name}\"\n    type = \"{kind}\"\n  }}\n");
        assert!(TERRAFORM.contains(&hcl), "{hcl}");
    }
    assert_eq!(
        CLOUDFORMATION.matches("AttributeType:").count(),
        table.attribute_definitions().len()
    );
    assert_eq!(
        TERRAFORM.matches("attribute {").count(),
        table.attribute_definitions().len()
    );
    let keys = |schema: &[aws_sdk_dynamodb::types::KeySchemaElement]| -> Vec<String> {
        schema
            .iter()
            .map(|it| it.attribute_name().to_owned())
            .collect()
    };
    assert_eq!(keys(table.key_schema()), ["pk", "sk"]);
    assert!(TERRAFORM.contains("  hash_key     = \"pk\"\n  range_key    = \"sk\"\n"));
    assert!(CLOUDFORMATION.contains("        - AttributeName: pk\n          KeyType: HASH\n        - AttributeName: sk\n          KeyType: RANGE\n"));
    let indexes = table.global_secondary_indexes();
    assert_eq!(indexes.len(), 2);
    assert_eq!(CLOUDFORMATION.matches("IndexName:").count(), 2);
    assert_eq!(TERRAFORM.matches("global_secondary_index {").count(), 2);
    for index in indexes {
        let (name, schema) = (
            index.index_name().unwrap_or_default(),
            keys(index.key_schema()),
        );
        let [hash, range] = &schema[..] else {
            panic!("{schema:?}")
        };
        let yaml = format!(
            "- IndexName: {name}\n          KeySchema:\n            - AttributeName: {hash}\n              KeyType: HASH\n            - AttributeName: {range}\n              KeyType: RANGE\n          Projection:\n            ProjectionType: KEYS_ONLY\n"
        );
        assert!(CLOUDFORMATION.contains(&yaml), "{yaml}");
        let hcl = format!(
            "global_secondary_index {{\n    name            = \"{name}\"\n    hash_key        = \"{hash}\"\n    range_key       = \"{range}\"\n    projection_type = \"KEYS_ONLY\"\n  }}\n"
        );
        assert!(TERRAFORM.contains(&hcl), "{hcl}");
    }
    for template in [CLOUDFORMATION, TERRAFORM] {
        assert!(template.contains("ttl"));
    }
    Ok(())
}

/// What operators do: the listing of stuck records from the index, a manual resolution, and its entry in the audit.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs moto: cargo xtask test runs it"]
async fn operators_find_stuck_records_without_reading_the_table() -> anyhow::Result<()> {
    let moto = Emulator::moto().await?;
    let (store, requests) = moto.store().await?;
    let mut stuck = Vec::new();
    for n in 0..20 {
        let claim = fresh(Duration::from_secs(60));
        let owner = owner(&claim, &granted(store.claim(&claim).await?));
        match n % 2 {
            0 => {
                store.complete(&owner, &outcome(10)).await?;
            }
            _ => {
                store.interrupt(&owner).await?;
                stuck.push(claim.id);
            }
        }
    }
    stuck.sort_unstable_by_key(|it| *it.as_bytes());
    requests.take();
    let filter = Filter {
        stuck: true,
        ..Filter::default()
    };
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store
            .list(&filter, &PageRequest { limit: 3, after })
            .await?;
        found.extend(page.records.into_iter().map(|it| it.record));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found.iter().map(|it| it.id).collect::<Vec<_>>(), stuck);
    assert!(
        !requests.names().contains(&"Scan".to_owned()),
        "{}",
        requests.take()
    );
    let change = ManualChange::new("ann", "looked at the ledger")?;
    let resolution = idem_store::store::Resolution::Complete(outcome(10));
    let observed = found[0].observation();
    store
        .resolve_manually(&observed, &resolution, &change)
        .await?;
    let audit = AuditStore::audit(&store, &AuditFilter::default(), &PageRequest::default()).await?;
    assert_eq!(audit.entries.len(), 1);
    assert_eq!(audit.entries[0].id(), Some(found[0].id));
    assert!(store.purge(100, Timestamp::MAX).await?.is_nothing());
    Ok(())
}
