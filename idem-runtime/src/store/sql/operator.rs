//! Reads for operators, alike in every dialect.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;

use super::listing::{SearchStatements, has_index, id_after, list_by_age};
use super::transitions::attempts_of_any;
use super::{Backend, Readable, SqlStore, Template, corrupt, declare_statements, unreadable};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{Payload, RecordState};
use crate::store::operator::{
    AgeOrder, Count, Counting, Finding, IndexState, KeptRecord, MigrationPlan, OperatorStore,
    OptionalIndex, PendingMigration, RecordStats, Stats, StepOfRecord, StepsOfRecord, key_space,
};
use crate::store::{Filter, Page, PageRequest, Store, Unreadable};

declare_statements! {
    /// Statements for operators.
    pub(in crate::store) struct OperatorStatements {}
    from "operator.sql" {
        steps_of,
        stats,
        stats_between,
        purge_queue,
    }
}

impl OperatorStatements {
    /// Statements of this template for records.
    pub(in crate::store) fn new(template: Template) -> Self {
        Self::from_template(&template.with_parts(Self::FILE))
    }
}

/// SQL store, as an operator uses it.
pub(in crate::store) trait SqlOperator: SqlStore + Store {
    /// Compares the applied versions with the known ones.
    fn plan(&self) -> impl Future<Output = Result<MigrationPlan, StoreError>> + Send;

    /// Applies the missing versions.
    fn apply(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes an optional index that cannot be used, if there is one.
    fn drop_unusable_index(
        &self,
        _index: OptionalIndex,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Checks the database, its settings, and the rights of the user.
    fn findings(&self) -> impl Future<Output = Vec<Finding>> + Send;
}

#[async_trait]
impl<S: SqlOperator> OperatorStore for S {
    async fn steps_of(
        &self,
        id: &RecordId,
        with_payloads: bool,
    ) -> Result<StepsOfRecord, StoreError> {
        let statements = OperatorStatements::new(self.template());
        let query = statements.steps_of.query().bytes(&id.as_bytes()[..]);
        let rows = self.read(query.number(i64::from(with_payloads))).await?;
        let steps = rows.iter().map(|row| {
            // A name that cannot be read is the error of its step.
            let name = row.text(0).unwrap_or_default();
            (name.to_owned(), step(row))
        });
        let (list, unreadable) = Unreadable::sort(steps)?;
        Ok(StepsOfRecord { list, unreadable })
    }

    async fn stats(&self, counting: Counting) -> Result<Stats, StoreError> {
        let statements = OperatorStatements::new(self.template());
        let sample = match counting {
            Counting::Exactly => None,
            Counting::Sample(size) => sample(self, size.max(1)).await?,
        };
        let query = match &sample {
            None => statements.stats.query(),
            Some(Sample { after, before, .. }) => statements
                .stats_between
                .query()
                .bytes(&after[..])
                .bytes(&before[..]),
        };
        let scale = sample.as_ref().map(Sample::scale);
        let rows = self.read(query).await?;
        let (mut groups, mut unreadable) = (Vec::new(), Count::Exactly(0));
        for row in &rows {
            match group(row, scale) {
                Ok(group) => groups.push(group),
                Err(error) if error.kind() == StoreErrorKind::Corrupt => {
                    unreadable = unreadable + number_of(row, scale)?;
                }
                Err(error) => return Err(error),
            }
        }
        let mut stats = Stats::of_groups(groups, sample.map(|it| it.size));
        stats.unreadable = unreadable;
        add_purge_queue(self, &mut stats).await?;
        Ok(stats)
    }

    async fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![schema(self.plan().await)];
        findings.extend(SqlOperator::findings(self).await);
        let stuck_index = has_index(self, OptionalIndex::Stuck).await.map(stuck_index);
        findings.push(Finding::or_failed(STUCK_INDEX, stuck_index));
        findings.push(Finding::or_failed(INDEXES, optional_indexes(self).await));
        findings
    }

    async fn migration_plan(&self) -> Result<Option<MigrationPlan>, StoreError> {
        self.plan().await.map(Some)
    }

    async fn apply_migrations(&self) -> Result<(), StoreError> {
        self.apply().await
    }

    async fn index(&self, index: OptionalIndex) -> Result<Option<IndexState>, StoreError> {
        let define = SearchStatements::of(self, index).define;
        Ok(Some(IndexState {
            exists: has_index(self, index).await?,
            sql: define.as_str().trim_end().to_owned(),
        }))
    }

    async fn create_index(&self, index: OptionalIndex) -> Result<(), StoreError> {
        if has_index(self, index).await? {
            return Ok(());
        }
        self.drop_unusable_index(index).await?;
        let create = SearchStatements::of(self, index).define;
        match self.write(create.query()).await {
            // Another process has created it meanwhile.
            Err(_) if has_index(self, index).await? => Ok(()),
            created => created.map(drop),
        }
    }

    async fn list_by_age(
        &self,
        filter: &Filter,
        order: AgeOrder,
        page: &PageRequest,
    ) -> Result<Page, StoreError> {
        if !has_index(self, OptionalIndex::Age).await? {
            return Err(StoreError::new(
                StoreErrorKind::Other,
                "there is no index of ages; create it with `idem migrate --index age --apply`, or list in the order of \
                 the store",
            ));
        }
        list_by_age(self, filter, order, page).await
    }

    async fn kept(&self, id: &RecordId) -> Result<Option<KeptRecord>, StoreError> {
        let Some(attempts) = attempts_of_any(self, id).await? else {
            return Ok(None);
        };
        let steps = OperatorStore::steps_of(self, id, true).await?;
        let query = self.statements().await?.recovery_input_of.query();
        let rows = self.read(query.bytes(&id.as_bytes()[..])).await?;
        let input = rows.first().map(|row| {
            let codec = row.text(0).map_err(unreadable)?.to_owned();
            let bytes = row.bytes(1).map_err(unreadable)?;
            let recoveries = row.number(2).map_err(unreadable)?;
            let recoveries = recoveries.try_into().map_err(|_| corrupt("recoveries"))?;
            let payload = Payload {
                codec: codec.into(),
                bytes: bytes.as_ref().into(),
            };
            Ok::<_, StoreError>((payload, recoveries))
        });
        Ok(Some(KeptRecord {
            attempts,
            steps,
            recovery_input: input.transpose()?,
        }))
    }
}

/// Finding about the versions of the tables.
fn schema(plan: Result<MigrationPlan, StoreError>) -> Finding {
    const CHECK: &str = "schema";
    match plan {
        Err(error) => Finding::failed(CHECK, &error),
        Ok(plan) if plan.applied > plan.known => Finding::ok(
            CHECK,
            format!(
                "the tables have version {}, of a later release, which says that they work with version {}, the newest of \
                 this build",
                plan.applied, plan.known
            ),
        ),
        Ok(plan) if plan.pending.is_empty() => Finding::ok(
            CHECK,
            format!(
                "the tables have version {}, the newest of this build",
                plan.applied
            ),
        ),
        Ok(plan) => Finding::problem(
            CHECK,
            format!(
                "the tables have version {}, and this build needs version {}",
                plan.applied, plan.known
            ),
            "run `idem migrate --plan`, then --apply, or give --sql to somebody who may define tables",
        ),
    }
}

/// Name of the check of the optional index of stuck records.
const STUCK_INDEX: &str = "index of stuck records";

/// Finding about the optional index of stuck records.
fn stuck_index(exists: bool) -> Finding {
    let found = match exists {
        true => {
            "the optional index exists: stuck records are found in a moment, and each call pays for another entry of an index"
        }
        false => {
            "the optional index does not exist: looking for stuck records reads the whole table, 10,000 rows at a time. If \
             that takes too long, `idem migrate --index stuck` creates it"
        }
    };
    Finding::ok(STUCK_INDEX, found)
}

/// Name of the check of the other optional indexes.
const INDEXES: &str = "optional indexes";

/// Finding about the optional indexes by which `idem find` and `idem list` search.
async fn optional_indexes<S: SqlStore>(store: &S) -> Result<Finding, StoreError> {
    let mut existing = Vec::new();
    for index in OptionalIndex::ALL {
        if index != OptionalIndex::Stuck && has_index(store, index).await? {
            existing.push(index.as_str());
        }
    }
    Ok(match &existing[..] {
        [] => Finding::ok(
            INDEXES,
            "there is none: a search by key alone, scope, owner or age reads the whole table",
        ),
        existing => Finding::ok(
            INDEXES,
            format!(
                "there are indexes by {}: a search by them takes a moment, and each first call pays for their entries",
                existing.join(", ")
            ),
        ),
    })
}

fn step<R: Readable>(row: &R) -> Result<StepOfRecord, StoreError> {
    Ok(StepOfRecord {
        name: row.text(0).map_err(unreadable)?.to_owned(),
        codec: row.text(1).map_err(unreadable)?.to_owned(),
        size: row.number(2).map_err(unreadable)?.max(0).cast_unsigned(),
        payload: row
            .bytes_or_null(3)
            .map_err(unreadable)?
            .map(|it| it.as_ref().into()),
    })
}

/// Records between two ids.
struct Sample {
    after: Vec<u8>,
    before: Vec<u8>,
    /// Number of records when the ids were read.
    size: u64,
}

impl Sample {
    fn scale(&self) -> f64 {
        key_space::scale(&self.after, &self.before)
    }
}

/// Finds a sample from a random place, or from the begin if the place is too near to the end. `None` if there are not
/// more records.
async fn sample<B: Backend>(backend: &B, size: u32) -> Result<Option<Sample>, StoreError> {
    for after in [key_space::random(), key_space::BEGIN] {
        if let Some(before) = id_after(backend, &after, size).await? {
            return Ok(Some(Sample {
                after: after.into(),
                before,
                size: size.into(),
            }));
        }
    }
    Ok(None)
}

/// Largest number of records of an index that are counted beside a sample.
const MAX_COUNTED: u32 = 10_000;

/// Adds what the index of the purge queue tells.
async fn add_purge_queue<S: SqlOperator>(store: &S, stats: &mut Stats) -> Result<(), StoreError> {
    let limit = match stats.sample {
        // The sums of the groups are exact, and those of the index are to be as well.
        None => i64::MAX - 1,
        Some(_) => i64::from(MAX_COUNTED),
    };
    let statements = OperatorStatements::new(store.template());
    let rows = store
        .read(statements.purge_queue.query().number(limit + 1))
        .await?;
    let row = rows.first().ok_or_else(|| corrupt("purge_after"))?;
    let number = |column| {
        let number = row.number_or_null(column).map_err(unreadable)?;
        Ok::<_, StoreError>(number.map(|it| it.max(0).cast_unsigned()))
    };
    let limit = limit.cast_unsigned();
    stats.purge_due = Count::up_to(limit, number(0)?.unwrap_or(0));
    stats.purge_lag = Duration::from_micros(number(1)?.unwrap_or(0));
    if let (Some(_), Some(interrupted)) = (stats.sample, number(2)?) {
        stats.interrupted = Count::up_to(limit, interrupted);
    }
    Ok(())
}

/// Reads the number of records from a row of the part `groups`.
fn number_of<R: Readable>(row: &R, scale: Option<f64>) -> Result<Count, StoreError> {
    let number = row.number(2).map_err(unreadable)?;
    Ok(key_space::scaled(number.max(0).cast_unsigned(), scale))
}

/// Reads a row of the part `groups`. A sample has a scale.
fn group<R: Readable>(row: &R, scale: Option<f64>) -> Result<RecordStats, StoreError> {
    let number = |column| {
        let number = row.number(column).map_err(unreadable)?;
        Ok::<_, StoreError>(number.max(0).cast_unsigned())
    };
    let span = |column| number(column).map(Duration::from_micros);
    let state = row.text(1).map_err(unreadable)?;
    Ok(RecordStats {
        operation: row.text(0).map_err(unreadable)?.to_owned(),
        state: RecordState::from_stored(state).ok_or_else(|| corrupt("state"))?,
        count: number_of(row, scale)?,
        stuck: key_space::scaled(number(3)?, scale),
        oldest: span(4)?,
        shortest_retention: span(5)?,
        longest_retention: span(6)?,
    })
}

/// Plan for the versions that are missing. `sql` returns the statements of the version with this index.
pub(in crate::store) fn migration_plan(
    applied: usize,
    missing: Range<usize>,
    sql: impl Fn(usize) -> String,
) -> MigrationPlan {
    let known = missing.end;
    let pending = missing.map(|index| PendingMigration {
        version: index + 1,
        sql: sql(index),
    });
    MigrationPlan {
        applied,
        known,
        pending: pending.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::{Table, check_statements};

    #[cfg(feature = "sqlite")]
    #[test]
    fn statements_are_those_of_the_file() {
        let dialect = crate::store::sqlite::statements::DIALECT;
        let template = dialect.template_of_records(&Table::default());
        let statements = OperatorStatements::new(template);
        check_statements(OperatorStatements::FILE, &statements.each());
    }
}
