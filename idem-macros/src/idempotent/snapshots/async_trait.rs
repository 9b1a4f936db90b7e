//! Expansion that the test of this name in `snapshots.rs` checks.

fn charge<'life0, 'life1, 'async_trait>(
    &'life0 self,
    key: &'life1 str,
    __arg2: [u64; 2],
    amount: u64,
) -> ::core::pin::Pin<
    Box<
        dyn ::core::future::Future<
            Output = Result<u64, Error>,
        > + ::core::marker::Send + 'async_trait,
    >,
>
where
    'life0: 'async_trait,
    'life1: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        if let ::core::option::Option::Some(__ret) = ::core::option::Option::None::<
            Result<u64, Error>,
        > {
            #[allow(unreachable_code)] return __ret;
        }
        let __self = self;
        let __arg2 = __arg2;
        let mut amount = amount;
        let __ret: Result<u64, Error> = {
            #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
            let (__idem_handle, __idem_call) = {
                #[allow(unused_variables, clippy::pattern_type_mismatch)]
                let [first, ..] = &__arg2;
                (
                    ::idem_runtime::__private::handle(&__self.idem),
                    ::idem_runtime::__private::Call::new(
                            "charges.create",
                            &key,
                            &::idem_runtime::__private::from_fn(|__idem_encoder| {
                                {
                                    let __encoder: &mut ::idem_runtime::__private::Encoder = __idem_encoder;
                                    ::idem_runtime::__private::Encoder::map(
                                        __encoder,
                                        0usize
                                            + ::idem_runtime::__private::Encoder::present(
                                                ::idem_runtime::__private::argument(&__arg2),
                                            )
                                            + ::idem_runtime::__private::Encoder::present(
                                                ::idem_runtime::__private::argument(&amount),
                                            ),
                                    );
                                    ::idem_runtime::__private::Encoder::entry(
                                        __encoder,
                                        b"a1",
                                        ::idem_runtime::__private::argument(&__arg2),
                                    );
                                    ::idem_runtime::__private::Encoder::entry(
                                        __encoder,
                                        b"famount",
                                        ::idem_runtime::__private::argument(&amount),
                                    );
                                }
                            }),
                            ::idem_runtime::__private::Duration::from_secs(86400u64),
                        )
                        .scope(&format!("{first}")),
                )
            };
            let mut __idem_running = match ::idem_runtime::__private::enter::<
                Result<u64, Error>,
            >(
                    __idem_handle,
                    __idem_call,
                    ::idem_runtime::__private::stored_values::<
                        <Result<u64, Error> as ::idem_runtime::__private::Returns>::Ok,
                    >(),
                    ::idem_runtime::__private::call_errors::<
                        <Result<u64, Error> as ::idem_runtime::__private::Returns>::Err,
                    >(),
                )
                .await
            {
                ::idem_runtime::__private::Result::Ok(__idem_running) => __idem_running,
                ::idem_runtime::__private::Result::Err(__idem_answer) => {
                    return ::idem_runtime::__private::returned::<
                        Result<u64, Error>,
                    >(__idem_answer);
                }
            };
            let __idem_result: Result<u64, Error> = ::idem_runtime::__private::drive::<
                Result<u64, Error>,
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
                            let __idem_never: Result<u64, Error> = loop {};
                            return __idem_never;
                        }
                        let [first, ..] = __arg2;
                        {
                            amount += first;
                            __self.pay(amount).await
                        }
                    },
                )
                .await;
            ::idem_runtime::__private::returned::<
                Result<u64, Error>,
            >(
                ::idem_runtime::__private::finish::<
                    Result<u64, Error>,
                >(
                        __idem_running,
                        __idem_result,
                        |_| ::idem_runtime::__private::ErrorKind::Transient,
                    )
                    .await,
            )
        };
        #[allow(unreachable_code)] __ret
    })
}
