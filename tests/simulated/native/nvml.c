/*
 * A libnvidia-ml.so.1 without a driver: answers what a control file says, as NVML documents it.
 *
 * The file is named by NVML_STUB and read anew whenever it changes. One word and its
 * value to a line; `gpu` begins a GPU and `slice` a MIG device of it:
 *
 *   init CODE | driver VERSION | wait CODE                (CODE: what a wait for events fails with)
 *   stall 0|1|2                              (a wait for events, or 2 the end of a set, does not end)
 *   keeps PATH                                            (open from the first start to the last end)
 *   gpu UUID
 *     name TEXT | bus ID | minor N | memory BYTES | used BYTES | mig 0|1 | events MASK
 *     utilization PERCENT | virtualization MODE | addressing MODE | fabric STATE STATUS CLIQUE CLUSTER
 *     remap PENDING FAILED | retired 0|1 | temperature NOW SHUTDOWN | recovery ACTION
 *     link I ACTIVE gpu|switch BUS | ancestor J LEVEL
 *     process compute|graphics|mps PID BYTES          (BYTES -1: not available)
 *     error FUNCTION|* CODE | hang FUNCTION|* SECONDS
 *     slice UUID GI CI GISLICES CISLICES MIB NAME     (processes after it are the slice's)
 *   event NUMBER TYPE UUID|- XID GI CI                (each number is delivered once, in order)
 *
 * What a GPU has no line for is NOT_SUPPORTED. Codes are NVML's numbers. Built with VERSION, it is
 * of that version alone: a driver of another one gets a mismatch from whatever is called.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       TIMEOUT = 10, LIB_RM_VERSION_MISMATCH = 18 };
enum { GPUS = 32, SLICES = 8, LINKS = 36, PROCESSES = 32, FAULTS = 16, EVENTS = 64, TEXT = 128, PATH = 400 };
enum { LOOK_MS = 10, RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };
#ifndef VERSION
#define VERSION ""
#endif
static const unsigned long long NOT_AVAILABLE = ~0ULL;

struct process {
	char kind[16];
	unsigned pid;
	unsigned long long memory;
};
struct unit { /* a GPU or a MIG device of one */
	char uuid[TEXT], name[TEXT];
	unsigned gi, ci, gi_slices, ci_slices;
	unsigned long long memory, used;
	int count;
	struct process processes[PROCESSES];
};
struct fault {
	char function[64];
	int code;
	double hang;
};
struct gpu {
	struct unit self;
	char bus[32];
	int minor, mig, utilization, remap, pending, failed, retired, temperature, shutdown, recovery;
	unsigned long long events;
	int slice_count, fault_count;
	struct unit slices[SLICES];
	struct fault faults[FAULTS];
	int active[LINKS], to_switch[LINKS];
	char remote[LINKS][32];
	int ancestor[GPUS];
	int virtualization, addressing, fabric_state, fabric_status, clique;
	char cluster[33]; /* 16 bytes, in hex */
};
struct addressing {
	unsigned version, value;
};
struct event {
	unsigned number, xid, gi, ci;
	unsigned long long type;
	char uuid[TEXT];
};
struct node {
	int init, wait, stall, gpu_count, event_count;
	char driver[TEXT], keeps[PATH];
	struct gpu gpus[GPUS];
	struct event events[EVENTS];
};

typedef void *handle; /* 1 + GPU + GPUS * (0, or 1 + slice) */

typedef struct {
	char legacy[16];
	unsigned domain, bus, device, ids, subsystem;
	char id[32];
} pci_info;
typedef struct {
	unsigned pid;
	unsigned long long memory;
	unsigned gi, ci;
} process_info;
typedef struct {
	unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices;
	unsigned long long mib;
} attributes;
typedef struct {
	unsigned version;
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
} fabric_info;
typedef struct {
	unsigned long long total, free, used;
} memory_info;
typedef struct {
	handle device;
	unsigned long long type, data;
	unsigned gi, ci;
} event_data;

struct field_value {
	unsigned id, scope;
	long long timestamp, latency;
	unsigned type;
	int code;
	unsigned long long value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node node, fresh;
static struct timespec read_at;
static off_t read_size = -1;
static unsigned delivered, begun;
static int kept = -1; /* what a real library has open of the driver */

static void word(struct node *to, char *key, char *rest)
{
	struct gpu *gpu = to->gpu_count ? &to->gpus[to->gpu_count - 1] : NULL;
	struct unit *unit = gpu && gpu->slice_count ? &gpu->slices[gpu->slice_count - 1]
						    : gpu ? &gpu->self : NULL;
	char text[TEXT] = "";
	int i = 0, on = 0;

	if (!strcmp(key, "init"))
		to->init = atoi(rest);
	else if (!strcmp(key, "wait"))
		to->wait = atoi(rest);
	else if (!strcmp(key, "stall"))
		to->stall = atoi(rest);
	else if (!strcmp(key, "keeps"))
		snprintf(to->keeps, PATH, "%s", rest);
	else if (!strcmp(key, "driver"))
		snprintf(to->driver, TEXT, "%s", rest);
	else if (!strcmp(key, "event") && to->event_count < EVENTS) {
		struct event *event = &to->events[to->event_count++];

		sscanf(rest, "%u %llu %127s %u %u %u", &event->number, &event->type, event->uuid,
		       &event->xid, &event->gi, &event->ci);
	} else if (!strcmp(key, "gpu") && to->gpu_count < GPUS) {
		gpu = &to->gpus[to->gpu_count++];
		snprintf(gpu->self.uuid, TEXT, "%s", rest);
		gpu->utilization = gpu->virtualization = gpu->addressing = gpu->fabric_state = -1;
		gpu->minor = gpu->mig = gpu->retired = gpu->temperature = gpu->recovery = -1;
		for (i = 0; i < LINKS; i++)
			gpu->active[i] = -1;
		for (i = 0; i < GPUS; i++)
			gpu->ancestor[i] = -1;
	} else if (!gpu)
		return;
	else if (!strcmp(key, "name"))
		snprintf(gpu->self.name, TEXT, "%s", rest);
	else if (!strcmp(key, "bus"))
		snprintf(gpu->bus, sizeof gpu->bus, "%s", rest);
	else if (!strcmp(key, "minor"))
		gpu->minor = atoi(rest);
	else if (!strcmp(key, "memory"))
		gpu->self.memory = strtoull(rest, NULL, 10);
	else if (!strcmp(key, "used"))
		unit->used = strtoull(rest, NULL, 10);
	else if (!strcmp(key, "mig"))
		gpu->mig = atoi(rest);
	else if (!strcmp(key, "utilization"))
		gpu->utilization = atoi(rest);
	else if (!strcmp(key, "virtualization"))
		gpu->virtualization = atoi(rest);
	else if (!strcmp(key, "addressing"))
		gpu->addressing = atoi(rest);
	else if (!strcmp(key, "fabric"))
		sscanf(rest, "%d %d %d %32s", &gpu->fabric_state, &gpu->fabric_status, &gpu->clique,
		       gpu->cluster);
	else if (!strcmp(key, "events"))
		gpu->events = strtoull(rest, NULL, 10);
	else if (!strcmp(key, "remap"))
		gpu->remap = sscanf(rest, "%d %d", &gpu->pending, &gpu->failed) == 2;
	else if (!strcmp(key, "retired"))
		gpu->retired = atoi(rest);
	else if (!strcmp(key, "recovery"))
		gpu->recovery = atoi(rest);
	else if (!strcmp(key, "temperature"))
		sscanf(rest, "%d %d", &gpu->temperature, &gpu->shutdown);
	else if (!strcmp(key, "link") && sscanf(rest, "%d %d %127s", &i, &on, text) == 3 && i < LINKS) {
		gpu->active[i] = on;
		gpu->to_switch[i] = !strcmp(text, "switch");
		sscanf(rest, "%*d %*d %*s %31s", gpu->remote[i]);
	} else if (!strcmp(key, "ancestor") && sscanf(rest, "%d %d", &i, &on) == 2 && i < GPUS)
		gpu->ancestor[i] = on;
	else if (!strcmp(key, "process") && unit->count < PROCESSES) {
		struct process *process = &unit->processes[unit->count++];

		sscanf(rest, "%15s %u %llu", process->kind, &process->pid, &process->memory);
		if (strstr(rest, " -1"))
			process->memory = NOT_AVAILABLE;
	} else if ((!strcmp(key, "error") || !strcmp(key, "hang")) && gpu->fault_count < FAULTS) {
		struct fault *fault = &gpu->faults[gpu->fault_count++];
		double number = 0;

		sscanf(rest, "%63s %lf", fault->function, &number);
		*key == 'e' ? (fault->code = (int)number) : (fault->hang = number);
	} else if (!strcmp(key, "slice") && gpu->slice_count < SLICES) {
		unit = &gpu->slices[gpu->slice_count++];
		sscanf(rest, "%127s %u %u %u %u %llu %127[^\n]", unit->uuid, &unit->gi, &unit->ci,
		       &unit->gi_slices, &unit->ci_slices, &unit->memory, unit->name);
		unit->memory <<= 20;
	}
}

/* Call with the lock. A file that is being replaced is read at the next call. */
static void reload(void)
{
	const char *path = getenv("NVML_STUB");
	struct stat status;
	char line[512];
	FILE *file;

	if (!path || stat(path, &status))
		return;
	if (status.st_size == read_size && status.st_mtim.tv_sec == read_at.tv_sec &&
	    status.st_mtim.tv_nsec == read_at.tv_nsec)
		return;
	file = fopen(path, "r");
	if (!file)
		return;
	memset(&fresh, 0, sizeof fresh);
	while (fgets(line, sizeof line, file)) {
		char *key = line + strspn(line, " "), *rest;

		key[strcspn(key, "\n")] = 0;
		rest = key + strcspn(key, " ");
		if (*rest)
			*rest++ = 0;
		word(&fresh, key, rest);
	}
	fclose(file);
	node = fresh;
	read_at = status.st_mtim;
	read_size = status.st_size;
}

/* Call with the lock, after reload(). */
static int state(void)
{
	if (*VERSION && strcmp(VERSION, node.driver))
		return LIB_RM_VERSION_MISMATCH;
	return node.init;
}

static void rest_for(double seconds)
{
	struct timespec pause = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };

	nanosleep(&pause, NULL);
}

/* Return with the lock held and the GPU, or without it and the error. */
static int enter(handle device, const char *function, struct gpu **gpu, struct unit **unit)
{
	unsigned long number = (unsigned long)device - 1;
	unsigned index = number % GPUS, slice = number / GPUS;
	double hang = 0;
	int code = OK;

	pthread_mutex_lock(&lock);
	reload();
	if (state() == LIB_RM_VERSION_MISMATCH)
		code = state();
	else if (!device || index >= (unsigned)node.gpu_count ||
		 slice > (unsigned)node.gpus[index].slice_count)
		code = INVALID_ARGUMENT;
	else {
		*gpu = &node.gpus[index];
		if (unit)
			*unit = slice ? &(*gpu)->slices[slice - 1] : &(*gpu)->self;
		for (int i = 0; i < (*gpu)->fault_count; i++) {
			struct fault *fault = &(*gpu)->faults[i];

			if (strcmp(fault->function, "*") && strcmp(fault->function, function))
				continue;
			if (fault->hang > 0)
				hang = fault->hang;
			else
				code = fault->code;
		}
	}
	if (code || hang > 0)
		pthread_mutex_unlock(&lock);
	if (hang > 0) {
		rest_for(hang);
		if (!code)
			pthread_mutex_lock(&lock);
	}
	return code;
}

static int leave(int code)
{
	pthread_mutex_unlock(&lock);
	return code;
}

#define ENTER(device) \
	struct gpu *gpu; \
	struct unit *unit; \
	int refused = enter(device, __func__, &gpu, &unit); \
	if (refused) \
		return refused; \
	(void)unit

int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	reload();
	begun += !state();
	if (begun && kept < 0 && *node.keeps)
		kept = open(node.keeps, O_RDONLY | O_CLOEXEC);
	return leave(state());
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void)
{
	pthread_mutex_lock(&lock);
	if (!begun)
		return leave(UNINITIALIZED);
	if (!--begun && kept >= 0) {
		close(kept);
		kept = -1;
	}
	return leave(OK);
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	pthread_mutex_lock(&lock);
	reload();
	snprintf(version, length, "%s", node.driver);
	return leave(begun ? state() : UNINITIALIZED);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	pthread_mutex_lock(&lock);
	reload();
	*count = (unsigned)node.gpu_count;
	return leave(state());
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device)
{
	*device = (handle)(unsigned long)(index + 1);
	struct gpu *gpu;
	int refused = enter(*device, __func__, &gpu, NULL);

	return refused ? refused : leave(OK);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle *device)
{
	int code = NOT_FOUND;

	pthread_mutex_lock(&lock);
	reload();
	for (int i = 0; i < node.gpu_count; i++) {
		if (!strcmp(node.gpus[i].self.uuid, uuid)) {
			*device = (handle)(unsigned long)(i + 1);
			code = OK;
		}
		for (int j = 0; j < node.gpus[i].slice_count; j++)
			if (!strcmp(node.gpus[i].slices[j].uuid, uuid)) {
				*device = (handle)(unsigned long)(1 + i + GPUS * (j + 1));
				code = OK;
			}
	}
	leave(OK);
	if (code)
		return code;
	struct gpu *gpu;
	int refused = enter(*device, __func__, &gpu, NULL);

	return refused ? refused : leave(OK);
}

int nvmlDeviceGetUUID(handle device, char *text, unsigned length)
{
	ENTER(device);
	snprintf(text, length, "%s", unit->uuid);
	return leave(OK);
}

int nvmlDeviceGetName(handle device, char *text, unsigned length)
{
	ENTER(device);
	snprintf(text, length, "%s", unit->name);
	return leave(OK);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	*version = 12040;
	return begun ? OK : UNINITIALIZED;
}

int nvmlDeviceGetBrand(handle device, int *brand)
{
	ENTER(device);
	*brand = 14;
	return leave(OK);
}

int nvmlDeviceGetArchitecture(handle device, unsigned *architecture)
{
	ENTER(device);
	*architecture = 9;
	return leave(OK);
}

int nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor)
{
	ENTER(device);
	*major = 9;
	*minor = 0;
	return leave(OK);
}

int nvmlDeviceGetVirtualizationMode(handle device, int *mode)
{
	ENTER(device);
	*mode = gpu->virtualization;
	return leave(*mode < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetAddressingMode(handle device, struct addressing *mode)
{
	ENTER(device);
	if (gpu->addressing < 0)
		return leave(NOT_SUPPORTED);
	mode->value = (unsigned)gpu->addressing;
	return leave(OK);
}

int nvmlDeviceGetGpuFabricInfoV(handle device, fabric_info *info)
{
	ENTER(device);
	if (info->version != (sizeof *info | 2 << 24))
		return leave(INVALID_ARGUMENT);
	info->state = (unsigned char)gpu->fabric_state;
	info->status = gpu->fabric_status;
	info->clique = (unsigned)gpu->clique;
	for (int i = 0; i < 16; i++)
		sscanf(gpu->cluster + 2 * i, "%2hhx", &info->cluster[i]);
	return leave(gpu->fabric_state < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetPciInfo_v3(handle device, pci_info *info)
{
	ENTER(device);
	memset(info, 0, sizeof *info);
	snprintf(info->id, sizeof info->id, "%s", gpu->bus);
	return leave(*gpu->bus ? OK : NOT_SUPPORTED);
}

int nvmlDeviceGetMinorNumber(handle device, unsigned *minor)
{
	ENTER(device);
	*minor = (unsigned)gpu->minor;
	return leave(gpu->minor < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetMemoryInfo(handle device, memory_info *info)
{
	ENTER(device);
	info->total = unit->memory;
	info->used = unit->used;
	info->free = unit->memory - unit->used;
	return leave(unit->memory ? OK : NOT_SUPPORTED);
}

int nvmlDeviceGetUtilizationRates(handle device, unsigned *percent)
{
	ENTER(device);
	percent[0] = (unsigned)gpu->utilization;
	percent[1] = 0; /* of the memory */
	return leave(gpu->utilization < 0 || gpu->mig > 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetMigMode(handle device, unsigned *current, unsigned *pending)
{
	ENTER(device);
	*current = *pending = gpu->mig > 0;
	return leave(gpu->mig < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetMaxMigDeviceCount(handle device, unsigned *count)
{
	ENTER(device);
	*count = gpu->mig < 0 ? 0 : 7;
	return leave(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned index, handle *slice)
{
	ENTER(device);
	*slice = (handle)((unsigned long)device + GPUS * (index + 1));
	return leave(gpu->mig > 0 && index < (unsigned)gpu->slice_count ? OK : NOT_FOUND);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle slice, handle *device)
{
	ENTER(slice);
	*device = (handle)(((unsigned long)slice - 1) % GPUS + 1);
	return leave(OK);
}

int nvmlDeviceIsMigDeviceHandle(handle device, unsigned *is)
{
	ENTER(device);
	*is = unit != &gpu->self;
	return leave(OK);
}

int nvmlDeviceGetGpuInstanceId(handle device, unsigned *id)
{
	ENTER(device);
	*id = unit->gi;
	return leave(unit == &gpu->self ? INVALID_ARGUMENT : OK);
}

int nvmlDeviceGetComputeInstanceId(handle device, unsigned *id)
{
	ENTER(device);
	*id = unit->ci;
	return leave(unit == &gpu->self ? INVALID_ARGUMENT : OK);
}

int nvmlDeviceGetAttributes_v2(handle device, attributes *found)
{
	ENTER(device);
	memset(found, 0, sizeof *found);
	/* As of an H100: 16 multiprocessors, a copy engine and decoders for each slice. */
	found->multiprocessors = 16 * unit->ci_slices;
	found->copy = found->decoder = found->jpeg = unit->gi_slices;
	found->gi_slices = unit->gi_slices;
	found->ci_slices = unit->ci_slices;
	found->mib = unit->memory >> 20;
	return leave(unit == &gpu->self ? INVALID_ARGUMENT : OK);
}

static int processes(handle device, const char *function, const char *kind, unsigned *count,
		     process_info *found)
{
	struct gpu *gpu;
	struct unit *unit;
	unsigned seen = 0, room = *count;
	int refused = enter(device, function, &gpu, &unit);

	if (refused)
		return refused;
	for (int i = 0; i < unit->count; i++) {
		if (strcmp(unit->processes[i].kind, kind))
			continue;
		if (found && seen < room)
			found[seen] = (process_info){ unit->processes[i].pid,
						      unit->processes[i].memory, unit->gi, unit->ci };
		seen++;
	}
	*count = seen;
	return leave(seen > room ? INSUFFICIENT_SIZE : OK);
}

/* The former version of each list is the same. */
#define LISTS(ask, kind) \
	int ask##_v2(handle device, unsigned *count, process_info *found) \
	{ \
		return processes(device, __func__, kind, count, found); \
	} \
	int ask##_v3(handle device, unsigned *count, process_info *found) \
	{ \
		return processes(device, __func__, kind, count, found); \
	}

LISTS(nvmlDeviceGetComputeRunningProcesses, "compute")
LISTS(nvmlDeviceGetGraphicsRunningProcesses, "graphics")
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, "mps")

int nvmlDeviceGetRemappedRows(handle device, unsigned *correctable, unsigned *uncorrectable,
			      unsigned *pending, unsigned *failed)
{
	ENTER(device);
	*correctable = *uncorrectable = 0;
	*pending = (unsigned)gpu->pending;
	*failed = (unsigned)gpu->failed;
	return leave(gpu->remap ? OK : NOT_SUPPORTED);
}

int nvmlDeviceGetRetiredPagesPendingStatus(handle device, unsigned *pending)
{
	ENTER(device);
	*pending = gpu->retired > 0;
	return leave(gpu->retired < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetTemperature(handle device, int sensor, unsigned *degrees)
{
	(void)sensor;
	ENTER(device);
	*degrees = (unsigned)gpu->temperature;
	return leave(gpu->temperature < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetTemperatureThreshold(handle device, int which, unsigned *degrees)
{
	(void)which; /* only that of shutdown is kept */
	ENTER(device);
	*degrees = (unsigned)gpu->shutdown;
	return leave(gpu->temperature < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetTopologyCommonAncestor(handle one, handle other, int *level)
{
	unsigned long index = ((unsigned long)other - 1) % GPUS;
	ENTER(one);
	*level = gpu->ancestor[index];
	return leave(*level < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetNvLinkState(handle device, unsigned link, unsigned *active)
{
	ENTER(device);
	if (link >= LINKS)
		return leave(INVALID_ARGUMENT);
	*active = gpu->active[link] > 0;
	return leave(gpu->active[link] < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(handle device, unsigned link, unsigned *type)
{
	ENTER(device);
	if (link >= LINKS)
		return leave(INVALID_ARGUMENT);
	*type = gpu->to_switch[link] ? 2 : 0;
	return leave(gpu->active[link] < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, unsigned link, pci_info *info)
{
	ENTER(device);
	if (link >= LINKS)
		return leave(INVALID_ARGUMENT);
	memset(info, 0, sizeof *info);
	snprintf(info->id, sizeof info->id, "%s", gpu->remote[link]);
	return leave(gpu->active[link] < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetSupportedEventTypes(handle device, unsigned long long *types)
{
	ENTER(device);
	*types = gpu->events;
	return leave(gpu->events ? OK : NOT_SUPPORTED);
}

int nvmlEventSetCreate(handle *set)
{
	*set = malloc(1);
	return OK;
}

int nvmlEventSetFree(handle set)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		reload();
		int stalls = node.stall == 2;

		pthread_mutex_unlock(&lock);
		if (!stalls)
			break;
		usleep(LOOK_MS * 1000);
	}
	free(set);
	return OK;
}

int nvmlDeviceRegisterEvents(handle device, unsigned long long types, handle set)
{
	(void)set;
	ENTER(device);
	return leave(types & ~gpu->events ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetFieldValues(handle device, int count, struct field_value *values)
{
	struct gpu *gpu;
	int code = enter(device, "nvmlDeviceGetFieldValues", &gpu, NULL);

	if (code)
		return code;
	for (int i = 0; i < count; i++) {
		values[i].type = UNSIGNED_INT;
		values[i].value = (unsigned long long)gpu->recovery;
		values[i].code = values[i].id != RECOVERY_ACTION || gpu->recovery < 0
					 ? NOT_SUPPORTED : OK;
	}
	return leave(OK);
}

/* Call with the lock: the handle of the GPU with a UUID; NULL: NVML cannot say which it is. */
static handle called(const char *uuid)
{
	for (int i = 0; i < node.gpu_count; i++)
		if (!strcmp(node.gpus[i].self.uuid, uuid))
			return (handle)(unsigned long)(i + 1);
	return NULL;
}

int nvmlEventSetWait_v2(handle set, event_data *data, unsigned timeout_ms)
{
	(void)set;
	for (unsigned waited = 0;; waited += LOOK_MS) {
		pthread_mutex_lock(&lock);
		reload();
		if (node.wait)
			return leave(node.wait);
		for (int i = 0; i < node.event_count; i++) {
			struct event *event = &node.events[i];

			if (event->number <= delivered)
				continue;
			delivered = event->number;
			*data = (event_data){ called(event->uuid), event->type, event->xid, event->gi,
					      event->ci };
			return leave(OK);
		}
		int stalls = node.stall == 1;

		pthread_mutex_unlock(&lock);
		if (waited >= timeout_ms && !stalls)
			return TIMEOUT;
		usleep(LOOK_MS * 1000);
	}
}
