//! Expansion that the test of this name in `snapshots.rs` checks.

async fn place(&self, order: Order) -> Result<u64, OrderError> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::transactions_of_handle(&self.idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::Call::new(
            "orders.place",
            __idem_private::usable_as_key(&order.id),
            &__idem_private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                    __idem_private::Encoder::map(
                        __encoder,
                        0usize
                            + __idem_private::Encoder::present(
                                __idem_private::usable_as_request(&order),
                            ),
                    );
                    __idem_private::Encoder::entry(
                        __encoder,
                        b"eorder",
                        __idem_private::usable_as_request(&order),
                    );
                }
            }),
            __idem_private::Duration::from_secs(86400u64),
        )
        .named_function({
            static __IDEM_FUNCTION: __idem_private::NamedFunction = __idem_private::NamedFunction::new(
                ::core::concat!(::core::module_path!(), "::", "place"),
            );
            &__IDEM_FUNCTION
        });
    let mut __idem_running = match __idem_private::enter_transaction::<
        Result<u64, OrderError>,
        _,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<u64, OrderError> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<u64, OrderError> as __idem_private::Returns>::Err,
            >()
                .with_stored(
                    __idem_private::stored_errors::<
                        <Result<u64, OrderError> as __idem_private::Returns>::Err,
                    >(),
                ),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<u64, OrderError>>(__idem_answer);
        }
    };
    let attempt = __idem_running.attempt();
    let __idem_result: Result<u64, OrderError> = {
        let (__idem_driver, tx) = __idem_running.parts();
        __idem_private::drive_transaction::<
            Result<u64, OrderError>,
        >(
                __idem_driver,
                async move {
                    #[allow(
                        unreachable_code,
                        clippy::all,
                        clippy::pedantic,
                        clippy::nursery
                    )]
                    if false {
                        let __idem_never: Result<u64, OrderError> = loop {};
                        return __idem_never;
                    }
                    #[allow(clippy::shadow_same)]
                    let tx = tx;
                    { insert(&mut *tx, order, attempt.number()).await }
                },
            )
            .await
    };
    __idem_private::returned::<
        Result<u64, OrderError>,
    >(
        __idem_private::finish_transaction::<
            Result<u64, OrderError>,
            _,
        >(
                __idem_running,
                __idem_result,
                |__idem_error| match __idem_error {
                    OrderError::SoldOut => __idem_private::Finality::Final,
                    #[allow(unreachable_patterns)]
                    _ => __idem_private::Finality::Transient,
                },
            )
            .await,
    )
}
