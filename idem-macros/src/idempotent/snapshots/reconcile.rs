//! Expansion that the test of this name in `snapshots.rs` checks.

async fn charge(&self, charge: Charge) -> AppResult<Receipt> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = ::idem_runtime::__private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = ::idem_runtime::__private::Call::new(
            "charges.create",
            &charge.id,
            &::idem_runtime::__private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut ::idem_runtime::__private::Encoder = __idem_encoder;
                    ::idem_runtime::__private::Encoder::map(
                        __encoder,
                        0usize
                            + ::idem_runtime::__private::Encoder::present(
                                ::idem_runtime::__private::argument(&charge),
                            ),
                    );
                    ::idem_runtime::__private::Encoder::entry(
                        __encoder,
                        b"fcharge",
                        ::idem_runtime::__private::argument(&charge),
                    );
                }
            }),
            ::idem_runtime::__private::Duration::from_secs(604800u64),
        )
        .on_crash(::idem_runtime::__private::OnCrash::Reconcile);
    let mut __idem_entered = ::idem_runtime::__private::enter_reconciling::<
        AppResult<Receipt>,
    >(
            __idem_handle,
            __idem_call,
            ::idem_runtime::__private::stored_values::<
                <AppResult<Receipt> as ::idem_runtime::__private::Returns>::Ok,
            >(),
            ::idem_runtime::__private::call_errors::<
                <AppResult<Receipt> as ::idem_runtime::__private::Returns>::Err,
            >(),
        )
        .await;
    let mut __idem_running = loop {
        __idem_entered = match __idem_entered {
            ::idem_runtime::__private::Result::Ok(
                ::idem_runtime::__private::Entered::Run(__idem_running),
            ) => break __idem_running,
            ::idem_runtime::__private::Result::Ok(
                ::idem_runtime::__private::Entered::Reconcile(__idem_request),
            ) => {
                #[allow(unused_variables)]
                let attempt = __idem_request.attempt();
                ::idem_runtime::__private::answer::<
                    AppResult<Receipt>,
                >(__idem_request, { self.bank.lookup(&charge.id, &attempt).await })
                    .await
            }
            ::idem_runtime::__private::Result::Err(__idem_answer) => {
                return ::idem_runtime::__private::returned::<
                    AppResult<Receipt>,
                >(__idem_answer);
            }
        };
    };
    #[allow(unused_variables)]
    let attempt = __idem_running.attempt();
    let __idem_result: AppResult<Receipt> = ::idem_runtime::__private::drive::<
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
    ::idem_runtime::__private::returned::<
        AppResult<Receipt>,
    >(
        ::idem_runtime::__private::finish::<
            AppResult<Receipt>,
        >(
                __idem_running,
                __idem_result,
                |_| ::idem_runtime::__private::ErrorKind::Unknown,
            )
            .await,
    )
}
