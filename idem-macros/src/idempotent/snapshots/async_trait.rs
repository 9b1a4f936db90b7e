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
            use ::idem_runtime::__private as __idem_private;
            #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
            let (__idem_handle, __idem_call) = {
                #[allow(unused_variables, clippy::pattern_type_mismatch)]
                let [first, ..] = &__arg2;
                (
                    __idem_private::engine_of_handle(&__self.idem),
                    __idem_private::Call::new(
                            "charges.create",
                            __idem_private::usable_as_key(&key),
                            &__idem_private::from_fn(|__idem_encoder| {
                                {
                                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                                    __idem_private::Encoder::map(
                                        __encoder,
                                        0usize
                                            + __idem_private::Encoder::present(
                                                __idem_private::usable_as_request(&__arg2),
                                            )
                                            + __idem_private::Encoder::present(
                                                __idem_private::usable_as_request(&amount),
                                            ),
                                    );
                                    __idem_private::Encoder::entry(
                                        __encoder,
                                        b"a1",
                                        __idem_private::usable_as_request(&__arg2),
                                    );
                                    __idem_private::Encoder::entry(
                                        __encoder,
                                        b"famount",
                                        __idem_private::usable_as_request(&amount),
                                    );
                                }
                            }),
                            __idem_private::Duration::from_secs(86400u64),
                        )
                        .scope(__idem_private::usable_as_scope(&format!("{first}")))
                        .named_function({
                            static __IDEM_FUNCTION: __idem_private::NamedFunction = __idem_private::NamedFunction::new(
                                ::core::concat!(::core::module_path!(), "::", "charge"),
                            );
                            &__IDEM_FUNCTION
                        }),
                )
            };
            let mut __idem_running = match __idem_private::enter::<
                Result<u64, Error>,
            >(
                    __idem_handle,
                    __idem_call,
                    __idem_private::stored_values::<
                        <Result<u64, Error> as __idem_private::Returns>::Ok,
                    >(),
                    __idem_private::call_errors::<
                        <Result<u64, Error> as __idem_private::Returns>::Err,
                    >(),
                )
                .await
            {
                __idem_private::Result::Ok(__idem_running) => __idem_running,
                __idem_private::Result::Err(__idem_answer) => {
                    return __idem_private::returned::<Result<u64, Error>>(__idem_answer);
                }
            };
            let __idem_result: Result<u64, Error> = __idem_private::drive::<
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
                        #[allow(unused_variables)]
                        let [first, ..] = __arg2;
                        {
                            amount += first;
                            __self.pay(amount).await
                        }
                    },
                )
                .await;
            __idem_private::returned::<
                Result<u64, Error>,
            >(
                __idem_private::finish::<
                    Result<u64, Error>,
                >(__idem_running, __idem_result, |_| __idem_private::Finality::Transient)
                    .await,
            )
        };
        #[allow(unreachable_code)] __ret
    })
}
