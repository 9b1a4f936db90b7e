//! Expansion that the test of this name in `snapshots.rs` checks.

async fn checkout(&self, order: Order) -> Result<u64, CheckoutError> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::engine_of_handle(&self.idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::Call::new(
            "orders.checkout",
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
            __idem_private::Duration::from_secs(604800u64),
        )
        .recover_with(__idem_private::usable_as_recovery_input(&order))
        .named_function({
            static __IDEM_FUNCTION: __idem_private::NamedFunction = __idem_private::NamedFunction::new(
                ::core::concat!(::core::module_path!(), "::", "checkout"),
            );
            &__IDEM_FUNCTION
        });
    let mut __idem_running = match __idem_private::enter::<
        Result<u64, CheckoutError>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<u64, CheckoutError> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<u64, CheckoutError> as __idem_private::Returns>::Err,
            >(),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<u64, CheckoutError>>(__idem_answer);
        }
    };
    let attempt = __idem_running.attempt();
    let __idem_result: Result<u64, CheckoutError> = __idem_private::drive::<
        Result<u64, CheckoutError>,
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
                    let __idem_never: Result<u64, CheckoutError> = loop {};
                    return __idem_never;
                }
                { self.pay(order, attempt.number()).await }
            },
        )
        .await;
    __idem_private::returned::<
        Result<u64, CheckoutError>,
    >(
        __idem_private::finish::<
            Result<u64, CheckoutError>,
        >(__idem_running, __idem_result, |_| __idem_private::Finality::Transient)
            .await,
    )
}
