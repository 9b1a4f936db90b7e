//! Expansion that the test of this name in `snapshots.rs` checks.

/// Charges once.
pub async fn charge(
    &self,
    tenant: &str,
    key: &Key,
    charge: Charge,
) -> Result<Receipt, ChargeError> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::engine_of_handle(&self.idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::Call::new(
            "charges.create",
            __idem_private::usable_as_key(&key),
            &__idem_private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                    __idem_private::Encoder::map(
                        __encoder,
                        0usize
                            + __idem_private::Encoder::present(
                                __idem_private::usable_as_request(&charge),
                            ),
                    );
                    __idem_private::Encoder::entry(
                        __encoder,
                        b"fcharge",
                        __idem_private::usable_as_request(&charge),
                    );
                }
            }),
            __idem_private::Duration::from_secs(86400u64),
        )
        .scope(__idem_private::usable_as_scope(&tenant))
        .named_function({
            static __IDEM_FUNCTION: __idem_private::NamedFunction = __idem_private::NamedFunction::new(
                ::core::concat!(::core::module_path!(), "::", "charge"),
            );
            &__IDEM_FUNCTION
        });
    let mut __idem_running = match __idem_private::enter::<
        Result<Receipt, ChargeError>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<Receipt, ChargeError> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<Receipt, ChargeError> as __idem_private::Returns>::Err,
            >()
                .with_stored(
                    __idem_private::stored_errors::<
                        <Result<Receipt, ChargeError> as __idem_private::Returns>::Err,
                    >(),
                ),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<
                Result<Receipt, ChargeError>,
            >(__idem_answer);
        }
    };
    let __idem_result: Result<Receipt, ChargeError> = __idem_private::drive::<
        Result<Receipt, ChargeError>,
    >(
            &mut __idem_running,
            async move {
                #[allow(
                    unreachable_code,
                    clippy::all,
                    clippy::pedantic,
                    clippy::nursery
                )]
                if false {
                    let __idem_never: Result<Receipt, ChargeError> = loop {};
                    return __idem_never;
                }
                { self.bank.pay(charge).await }
            },
        )
        .await;
    __idem_private::returned::<
        Result<Receipt, ChargeError>,
    >(
        __idem_private::finish::<
            Result<Receipt, ChargeError>,
        >(
                __idem_running,
                __idem_result,
                |__idem_error| match __idem_error {
                    ChargeError::Declined { .. } => __idem_private::Finality::Final,
                    #[allow(unreachable_patterns)]
                    _ => __idem_private::Finality::Transient,
                },
            )
            .await,
    )
}
