/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfide for Java: class Library. Strings are bytes of UTF-8 that end with a zero, because JNI's own are another encoding. A failed call ends by
 * Library.fail, which throws. That no handle is used after its close is seen to by the Java side.
 */
#include <fide.h>
#include <jni.h>
#include <stdlib.h>

static jclass library;
static jmethodID fail_method, resumed_method;

static jbyteArray bytes_of(JNIEnv *env, const void *data, size_t len)
{
	jbyteArray array = (*env)->NewByteArray(env, (jsize)len);
	if (array && len)
		(*env)->SetByteArrayRegion(env, array, 0, (jsize)len, data);
	return array;
}

static jbyteArray text_of(JNIEnv *env, const char *text)
{
	return text ? bytes_of(env, text, strlen(text)) : NULL;
}

/* Throws when result is an error. */
static int checked(JNIEnv *env, int result)
{
	if (result < 0) {
		jbyteArray text = text_of(env, fide_last_error_text());
		if (text)
			(*env)->CallStaticVoidMethod(env, library, fail_method, (jint)-result, text);
	}
	return result;
}

/* Runs a statement with the bytes of an array as a string. */
#define WITH_TEXT(array, text, statement)                                              \
	do {                                                                           \
		jbyte *text##_bytes = (*env)->GetByteArrayElements(env, array, NULL);  \
		if (text##_bytes) {                                                    \
			const char *text = (const char *)text##_bytes;                 \
			statement;                                                     \
			(*env)->ReleaseByteArrayElements(env, array, text##_bytes, JNI_ABORT); \
		}                                                                      \
	} while (0)

static struct fide *handle(jlong f)
{
	return (struct fide *)(intptr_t)f;
}

static struct fide_progress *counter(jlong p)
{
	return (struct fide_progress *)(intptr_t)p;
}

static jlong JNICALL open_(JNIEnv *env, jclass class, jbyteArray path, jboolean socket_only, jlong answer_timeout_ns)
{
	struct fide_options options;
	struct fide *f = NULL;
	(void)class;
	fide_options_init(&options);
	options.flags = socket_only ? FIDE_OPEN_SOCKET_ONLY : 0;
	options.answer_timeout_ns = (uint64_t)answer_timeout_ns;
	if (!path)
		checked(env, fide_open_with(&options, &f));
	else
		WITH_TEXT(path, text, options.path = text; checked(env, fide_open_with(&options, &f)));
	return (jlong)(intptr_t)f;
}

static void JNICALL close_(JNIEnv *env, jclass class, jlong f)
{
	(void)class;
	checked(env, fide_close(handle(f)));
}

static jbyteArray JNICALL node(JNIEnv *env, jclass class, jlong f)
{
	(void)class;
	return text_of(env, fide_node(handle(f)));
}

static jlongArray numbers_of(JNIEnv *env, const struct fide_monitored *m)
{
	const jlong numbers[] = { m->node, m->app, m->pbsize, (jlong)m->timeout_ns, m->alive, m->state, m->cause, m->code };
	const jsize count = sizeof numbers / sizeof *numbers;
	jlongArray array = (*env)->NewLongArray(env, count);
	if (array)
		(*env)->SetLongArrayRegion(env, array, 0, count, numbers);
	return array;
}

static jlongArray JNICALL monitor(JNIEnv *env, jclass class, jlong f, jbyteArray target, jint pbsize, jlong timeout_ns)
{
	struct fide_resources wanted;
	struct fide_monitored granted;
	int result = FIDE_EINVAL;
	(void)class;
	fide_resources_init(&wanted);
	fide_monitored_init(&granted);
	wanted.pbsize = (uint32_t)pbsize;
	wanted.timeout_ns = (uint64_t)timeout_ns;
	WITH_TEXT(target, text, result = checked(env, fide_monitor(handle(f), text, &wanted, &granted)));
	return result < 0 ? NULL : numbers_of(env, &granted);
}

static void JNICALL unmonitor(JNIEnv *env, jclass class, jlong f, jbyteArray target)
{
	(void)class;
	WITH_TEXT(target, text, checked(env, fide_unmonitor(handle(f), text)));
}

static jlong JNICALL join(JNIEnv *env, jclass class, jlong f, jbyteArray name, jint pbsize)
{
	uint32_t app = 0, granted = 0;
	(void)class;
	WITH_TEXT(name, text, checked(env, fide_join(handle(f), text, (uint32_t)pbsize, &app, &granted)));
	return (jlong)((uint64_t)app << 32 | granted);
}

static void JNICALL quit(JNIEnv *env, jclass class, jlong f)
{
	(void)class;
	checked(env, fide_quit(handle(f)));
}

static void JNICALL piggyback(JNIEnv *env, jclass class, jlong f, jbyteArray message)
{
	jbyte buffer[FIDE_PIGGYBACK_MAX + 1];
	jsize len = (*env)->GetArrayLength(env, message);
	(void)class;
	/* What is too large is refused for its length: the bytes are not looked at then. */
	(*env)->GetByteArrayRegion(env, message, 0, len < (jsize)sizeof buffer ? len : (jsize)sizeof buffer, buffer);
	checked(env, fide_piggyback(handle(f), buffer, (size_t)(len < (jsize)sizeof buffer ? len : (jsize)sizeof buffer)));
}

static jint JNICALL pbsize(JNIEnv *env, jclass class, jlong f)
{
	(void)env;
	(void)class;
	return fide_pbsize(handle(f));
}

static void JNICALL report(JNIEnv *env, jclass class, jlong f, jbyteArray name, jboolean hung, jbyteArray reason)
{
	(void)class;
	WITH_TEXT(name, text, WITH_TEXT(reason, why, checked(env, fide_report(handle(f), text, hung, why))));
}

/* What Library.next reads: ten numbers of 32 bits, five of 64, the name, the data. */
struct packed {
	uint32_t kind, cause, grade, node, app, incarnation;
	int32_t code;
	uint32_t path, flags, name_len;
	uint64_t id, event_ns, sent_ns, received_ns, number;
};

static jlong JNICALL maintenance(JNIEnv *env, jclass class, jlong f, jbyteArray target)
{
	uint64_t left_ns = 0;
	(void)class;
	WITH_TEXT(target, text, checked(env, fide_maintenance(handle(f), text, &left_ns)));
	return (jlong)left_ns;
}

static jbyteArray JNICALL next(JNIEnv *env, jclass class, jlong f, jint timeout_ms)
{
	struct fide_event e;
	jbyteArray array;
	(void)class;
	fide_event_init(&e);
	if (checked(env, fide_next_event(handle(f), &e, timeout_ms)) != 1)
		return NULL;
	struct packed p = { e.kind, e.cause, e.grade, e.node, e.app, e.incarnation, e.code, e.path, e.flags,
			    e.name ? (uint32_t)strlen(e.name) : 0, e.id, e.event_ns, e.sent_ns, e.received_ns, e.number };
	array = (*env)->NewByteArray(env, (jsize)(sizeof p + p.name_len + e.data_len));
	if (!array)
		return NULL;
	(*env)->SetByteArrayRegion(env, array, 0, sizeof p, (const jbyte *)&p);
	if (p.name_len)
		(*env)->SetByteArrayRegion(env, array, sizeof p, (jsize)p.name_len, (const jbyte *)e.name);
	if (e.data_len)
		(*env)->SetByteArrayRegion(env, array, (jsize)(sizeof p + p.name_len), (jsize)e.data_len, e.data);
	return array;
}

struct resuming {
	JNIEnv *env;
	jobject list;
};

static void resumed(const char *target, int error, const struct fide_monitored *now, void *user)
{
	struct resuming *r = user;
	JNIEnv *env = r->env;
	if ((*env)->ExceptionCheck(env) || (*env)->PushLocalFrame(env, 8) < 0)
		return;
	(*env)->CallStaticVoidMethod(env, library, resumed_method, r->list, text_of(env, target), (jint)-error,
				     error ? text_of(env, fide_last_error_text()) : NULL, now ? numbers_of(env, now) : NULL);
	(*env)->PopLocalFrame(env, NULL);
}

static void JNICALL reconnect(JNIEnv *env, jclass class, jlong f, jobject list)
{
	struct resuming r = { env, list };
	int result = fide_reconnect(handle(f), resumed, &r);
	(void)class;
	if (!(*env)->ExceptionCheck(env))
		checked(env, result);
}

static jlong JNICALL progress_open(JNIEnv *env, jclass class, jlong f, jlong limit_ns)
{
	struct fide_progress *p = NULL;
	(void)class;
	checked(env, fide_progress_open(handle(f), (uint64_t)limit_ns, &p));
	return (jlong)(intptr_t)p;
}

static void JNICALL progress_limit(JNIEnv *env, jclass class, jlong f, jlong p, jlong limit_ns)
{
	(void)class;
	checked(env, fide_progress_limit(handle(f), counter(p), (uint64_t)limit_ns));
}

static void JNICALL progress_close(JNIEnv *env, jclass class, jlong p)
{
	(void)class;
	checked(env, fide_progress_close(counter(p)));
}

static void JNICALL progress_tick(JNIEnv *env, jclass class, jlong p)
{
	(void)env;
	(void)class;
	fide_progress_tick(counter(p));
}

static void JNICALL progress_begin(JNIEnv *env, jclass class, jlong p)
{
	(void)env;
	(void)class;
	fide_progress_begin(counter(p));
}

static void JNICALL progress_end(JNIEnv *env, jclass class, jlong p)
{
	(void)env;
	(void)class;
	fide_progress_end(counter(p));
}

static jbyteArray JNICALL id_text(JNIEnv *env, jclass class, jlong id)
{
	char text[24];
	(void)class;
	return checked(env, fide_id_text((uint64_t)id, text, sizeof text)) < 0 ? NULL : text_of(env, text);
}

static jlong JNICALL now_ns(JNIEnv *env, jclass class)
{
	(void)env;
	(void)class;
	return (jlong)fide_now_ns();
}

static jbyteArray JNICALL cause_name(JNIEnv *env, jclass class, jint cause)
{
	(void)class;
	return text_of(env, fide_cause_name((uint32_t)cause));
}

static JNINativeMethod methods[] = {
	{ "open", "([BZJ)J", (void *)open_ },
	{ "close", "(J)V", (void *)close_ },
	{ "node", "(J)[B", (void *)node },
	{ "monitor", "(J[BIJ)[J", (void *)monitor },
	{ "unmonitor", "(J[B)V", (void *)unmonitor },
	{ "join", "(J[BI)J", (void *)join },
	{ "quit", "(J)V", (void *)quit },
	{ "piggyback", "(J[B)V", (void *)piggyback },
	{ "pbsize", "(J)I", (void *)pbsize },
	{ "report", "(J[BZ[B)V", (void *)report },
	{ "maintenance", "(J[B)J", (void *)maintenance },
	{ "next", "(JI)[B", (void *)next },
	{ "reconnect", "(JLjava/util/List;)V", (void *)reconnect },
	{ "progressOpen", "(JJ)J", (void *)progress_open },
	{ "progressLimit", "(JJJ)V", (void *)progress_limit },
	{ "progressClose", "(J)V", (void *)progress_close },
	{ "progressTick", "(J)V", (void *)progress_tick },
	{ "progressBegin", "(J)V", (void *)progress_begin },
	{ "progressEnd", "(J)V", (void *)progress_end },
	{ "idText", "(J)[B", (void *)id_text },
	{ "nowNs", "()J", (void *)now_ns },
	{ "causeName", "(I)[B", (void *)cause_name },
};

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved)
{
	JNIEnv *env;
	jclass local;
	(void)reserved;
	if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_1_8) != JNI_OK)
		return JNI_ERR;
	local = (*env)->FindClass(env, "io/github/fideproject/fide/Library");
	if (!local || !(library = (*env)->NewGlobalRef(env, local)))
		return JNI_ERR;
	fail_method = (*env)->GetStaticMethodID(env, library, "fail", "(I[B)V");
	resumed_method = (*env)->GetStaticMethodID(env, library, "resumed", "(Ljava/util/List;[BI[B[J)V");
	if (!fail_method || !resumed_method)
		return JNI_ERR;
	if ((*env)->RegisterNatives(env, library, methods, sizeof methods / sizeof *methods) != 0)
		return JNI_ERR;
	return JNI_VERSION_1_8;
}
