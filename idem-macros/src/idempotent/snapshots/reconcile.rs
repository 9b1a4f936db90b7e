//! Expansion that the test of this name in `snapshots.rs` checks.

async fn charge(&self, charge: Charge) -> AppResult<Receipt> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::Call::new(
            "charges.create",
            __idem_private::usable_as_key(&charge.id),
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
            __idem_private::Duration::from_secs(604800u64),
        )
        .on_crash(__idem_private::OnCrash::Reconcile)
        .named_function({
            static __IDEM_FUNCTION: __idem_private::NamedFunction = __idem_private::NamedFunction::new(
                ::core::concat!(::core::module_path!(), "::", "charge"),
            );
            &__IDEM_FUNCTION
        });
    let mut __idem_entered = __idem_private::enter_reconciling::<
        AppResult<Receipt>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <AppResult<Receipt> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <AppResult<Receipt> as __idem_private::Returns>::Err,
            >(),
        )
        .await;
    let mut __idem_running = loop {
        __idem_entered = match __idem_entered {
            __idem_private::Result::Ok(__idem_private::Entered::Run(__idem_running)) => {
                break __idem_running;
            }
            __idem_private::Result::Ok(
                __idem_private::Entered::Reconcile(__idem_request),
            ) => {
                #[allow(unused_variables)]
                let attempt = __idem_request.attempt();
                __idem_private::answer::<
                    AppResult<Receipt>,
                >(
                        __idem_request,
                        {
                            __idem_private::question::<
                                AppResult<Receipt>,
                                _,
                            >(self.bank.lookup(&charge.id, &attempt))
                                .await
                        },
                    )
                    .await
            }
            __idem_private::Result::Err(__idem_answer) => {
                return __idem_private::returned::<AppResult<Receipt>>(__idem_answer);
            }
        };
    };
    #[allow(unused_variables)]
    let attempt = __idem_running.attempt();
    let __idem_result: AppResult<Receipt> = __idem_private::drive::<
        AppResult<Receipt>,
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
                    let __idem_never: AppResult<Receipt> = loop {};
                    return __idem_never;
                }
                { self.bank.pay(charge, attempt.downstream_key("bank")).await }
            },
        )
        .await;
    __idem_private::returned::<
        AppResult<Receipt>,
    >(
        __idem_private::finish::<
            AppResult<Receipt>,
        >(__idem_running, __idem_result, |_| __idem_private::Finality::Unknown)
            .await,
    )
}
