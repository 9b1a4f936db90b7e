//! The table: created by API, or from a template.

use std::time::Duration;

use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};
use idem_store::{StoreError, StoreErrorKind};

use crate::DynamoDbStore;
use crate::error::{failed, unbuilt};
use crate::item::{OPEN, RECOVERY};
use crate::request::send;

/// CloudFormation template of the table, with the rights of a service as a managed policy.
pub const CLOUDFORMATION: &str = include_str!("../templates/table.yaml");
/// Terraform configuration of the table.
pub const TERRAFORM: &str = include_str!("../templates/table.tf");
/// IAM policy with the rights that a service needs, and no others. `TABLE_ARN` stands for the table.
pub const POLICY: &str = include_str!("../templates/policy.json");

/// Longest time until a new table can be used.
const CREATION: Duration = Duration::from_secs(120);
/// Pause between two looks at a table that is being created.
const LOOK: Duration = Duration::from_millis(500);

const TTL: &str = "ttl";

fn key(hash: &str, range: &str) -> Result<Vec<KeySchemaElement>, StoreError> {
    [(hash, KeyType::Hash), (range, KeyType::Range)]
        .into_iter()
        .map(|(name, kind)| {
            let element = KeySchemaElement::builder().attribute_name(name);
            element.key_type(kind).build().map_err(|_| unbuilt())
        })
        .collect()
}

fn index(name: &str, hash: &str, range: &str) -> Result<GlobalSecondaryIndex, StoreError> {
    let keys_only = Projection::builder().projection_type(ProjectionType::KeysOnly);
    GlobalSecondaryIndex::builder()
        .index_name(name)
        .set_key_schema(Some(key(hash, range)?))
        .projection(keys_only.build())
        .build()
        .map_err(|_| unbuilt())
}

impl DynamoDbStore {
    /// Creates the table with its indexes and its expiry, and waits until it can be used. A table that is there stays as it
    /// is, except that its expiry is switched on.
    ///
    /// This needs rights that a service does not need afterwards: `CreateTable`, `DescribeTable`, `DescribeTimeToLive` and
    /// `UpdateTimeToLive`. The templates [`CLOUDFORMATION`] and [`TERRAFORM`] describe the same table.
    ///
    /// # Errors
    /// [`StoreErrorKind::Denied`] without these rights, [`StoreErrorKind::Timeout`] if the table cannot be used after two
    /// minutes, and any error of a request.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the table absent, without its expiry, or complete. Call this again.
    pub async fn create_table(&self) -> Result<(), StoreError> {
        let attributes = [
            ("pk", ScalarAttributeType::B),
            ("sk", ScalarAttributeType::S),
            ("g", ScalarAttributeType::S),
            ("ro", ScalarAttributeType::S),
            ("rd", ScalarAttributeType::N),
        ];
        let attributes: Result<Vec<_>, _> = attributes
            .into_iter()
            .map(|(name, kind)| {
                let attribute = AttributeDefinition::builder().attribute_name(name);
                attribute
                    .attribute_type(kind)
                    .build()
                    .map_err(|_| unbuilt())
            })
            .collect();
        let request = self
            .client
            .create_table()
            .table_name(&self.table)
            .billing_mode(BillingMode::PayPerRequest)
            .set_attribute_definitions(Some(attributes?))
            .set_key_schema(Some(key("pk", "sk")?))
            .global_secondary_indexes(index(OPEN, "g", "pk")?)
            .global_secondary_indexes(index(RECOVERY, "ro", "rd")?);
        match send!(self, request) {
            Ok(_) => {}
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(CreateTableError::is_resource_in_use_exception) => {}
            Err(error) => return Err(self.note(failed(&error))),
        }
        self.wait_until_active().await?;
        self.switch_expiry_on().await
    }

    async fn wait_until_active(&self) -> Result<(), StoreError> {
        let began = tokio::time::Instant::now();
        loop {
            let describe = self.client.describe_table().table_name(&self.table);
            let described = send!(self, describe).map_err(|error| self.note(failed(&error)))?;
            let status = described.table.and_then(|it| it.table_status);
            if status == Some(TableStatus::Active) {
                return Ok(());
            }
            if began.elapsed() > CREATION {
                return Err(StoreError::new(
                    StoreErrorKind::Timeout,
                    "the table is not active yet; call `create_table` again later",
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn switch_expiry_on(&self) -> Result<(), StoreError> {
        let describe = self.client.describe_time_to_live().table_name(&self.table);
        let described = send!(self, describe).map_err(|error| self.note(failed(&error)))?;
        let status = described
            .time_to_live_description
            .and_then(|it| it.time_to_live_status);
        if matches!(
            status,
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
        ) {
            return Ok(());
        }
        let expiry = TimeToLiveSpecification::builder()
            .attribute_name(TTL)
            .enabled(true)
            .build()
            .map_err(|_| unbuilt())?;
        let update = self.client.update_time_to_live().table_name(&self.table);
        send!(self, update.time_to_live_specification(expiry))
            .map_err(|error| self.note(failed(&error)))?;
        Ok(())
    }
}
