// SPDX-License-Identifier: Apache-2.0
// A C view of the Verilator model: one call a clock. Rust loads it at run time (rtl/cosim/src/model.rs).
#include "Vfide_cosim_top.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

struct In {
	uint64_t rx_keep[2], req_keep;
	uint8_t rx_data[2][64], req_data[64];
	uint8_t rx_valid, rx_last, rx_user, req_valid, req_last, req_user, tx_ready, dec_ready;
	uint8_t awvalid, bready, arvalid, rready, rst_n, pad[3];
	uint32_t awaddr, wdata, araddr, time_step;
};
struct Out {
	uint64_t tx_keep[2], dec_keep, time, round, next, decided;
	uint8_t tx_data[2][64], dec_data[64];
	uint32_t refused, rdata;
	uint16_t members, crashed, tx_user, width;
	uint8_t tx_valid, tx_last, dec_valid, dec_last, dec_user, bvalid, bresp, awready, rvalid, rresp, arready;
	uint8_t running, halted, has_leader, leader, awaiting, heard, tells_exit, tells_ready, ready_to;
	uint8_t step_live, step_event, step_left, event, event_path, admit, room, judged, busy, pad2[3];
};
struct Sim {
	VerilatedContext context;
	// No pool of threads: its end waits for threads that the model never used.
	int threads = (context.threads(1), 1);
	Vfide_cosim_top top{&context};
#if VM_TRACE
	VerilatedVcdC trace;
	bool traces = false;
#endif
};

extern "C" {
uint64_t fide_sim_abi() { return sizeof(In) << 32 | sizeof(Out); }
// Models are kept for the next one that is asked for: Verilator 5.006 waits for ever for a lock of its own
// when one of several models is deleted (VerilatedContextImp::scopeErase).
static std::mutex kept_lock;
static std::vector<Sim *> kept;
Sim *fide_sim_new()
{
	std::lock_guard<std::mutex> guard(kept_lock);
	if (kept.empty()) return new Sim;
	Sim *sim = kept.back();
	kept.pop_back();
	return sim;
}
void fide_sim_free(Sim *sim)
{
#if VM_TRACE
	// A model with a waveform is not used again: its file is complete.
	if (sim->traces) {
		sim->trace.close();
		return;
	}
#endif
	std::lock_guard<std::mutex> guard(kept_lock);
	kept.push_back(sim);
}
// 1 if the model was built with waveforms.
int fide_sim_trace(Sim *sim, const char *path)
{
#if VM_TRACE
	sim->context.traceEverOn(true);
	sim->top.trace(&sim->trace, 99);
	sim->trace.open(path);
	sim->traces = true;
	return 1;
#else
	(void)sim, (void)path;
	return 0;
#endif
}
void fide_sim_step(Sim *sim, const In *in, Out *out)
{
	Vfide_cosim_top &t = sim->top;
	t.rst_ni = in->rst_n;
	t.rx_tvalid_i = in->rx_valid;
	t.rx_tlast_i = in->rx_last;
	t.rx_tuser_i = in->rx_user;
	if (in->rx_valid) {
		memcpy(&t.rx_tdata_i[0], in->rx_data, 128);
		memcpy(&t.rx_tkeep_i[0], in->rx_keep, 16);
	}
	t.req_tvalid_i = in->req_valid;
	t.req_tlast_i = in->req_last;
	t.req_tuser_i = in->req_user;
	if (in->req_valid) {
		memcpy(&t.req_tdata_i[0], in->req_data, 64);
		t.req_tkeep_i = in->req_keep;
	}
	t.tx_tready_i = in->tx_ready;
	t.dec_tready_i = in->dec_ready;
	t.awvalid_i = t.wvalid_i = in->awvalid;
	t.awaddr_i = in->awaddr;
	t.wdata_i = in->wdata;
	t.bready_i = in->bready;
	t.arvalid_i = in->arvalid;
	t.araddr_i = in->araddr;
	t.rready_i = in->rready;
	t.time_step_i = in->time_step;
	t.clk_i = 0;
	t.eval();
#if VM_TRACE
	if (sim->traces) sim->trace.dump(sim->context.time());
#endif
	sim->context.timeInc(1);
	out->tx_valid = t.tx_tvalid_o;
	out->tx_last = t.tx_tlast_o;
	out->tx_user = t.tx_tuser_o;
	if (t.tx_tvalid_o) {
		memcpy(out->tx_data, &t.tx_tdata_o[0], 128);
		memcpy(out->tx_keep, &t.tx_tkeep_o[0], 16);
	}
	out->dec_valid = t.dec_tvalid_o;
	out->dec_last = t.dec_tlast_o;
	out->dec_user = t.dec_tuser_o;
	if (t.dec_tvalid_o) {
		memcpy(out->dec_data, &t.dec_tdata_o[0], 64);
		out->dec_keep = t.dec_tkeep_o;
	}
	out->time = t.time_o;
	out->round = t.round_o;
	out->next = t.next_o;
	out->decided = t.decided_o;
	out->refused = t.refused_o;
	out->rdata = t.rdata_o;
	out->members = t.members_o;
	out->crashed = t.crashed_o;
	out->bvalid = t.bvalid_o;
	out->bresp = t.bresp_o;
	out->awready = t.awready_o;
	out->rvalid = t.rvalid_o;
	out->rresp = t.rresp_o;
	out->arready = t.arready_o;
	out->running = t.running_o;
	out->halted = t.halted_o;
	out->has_leader = t.has_leader_o;
	out->leader = t.leader_o;
	out->awaiting = t.awaiting_o;
	out->heard = t.heard_o;
	out->tells_exit = t.tells_exit_o;
	out->tells_ready = t.tells_ready_o;
	out->ready_to = t.ready_to_o;
	out->step_live = t.step_live_o;
	out->step_event = t.step_event_o;
	out->step_left = t.step_left_o;
	out->event = t.event_o;
	out->event_path = t.event_path_o;
	out->admit = t.admit_o;
	out->room = t.room_o;
	out->judged = t.judged_o;
	out->busy = t.busy_o;
	out->width = t.width_o;
	t.clk_i = 1;
	t.eval();
#if VM_TRACE
	if (sim->traces) sim->trace.dump(sim->context.time());
#endif
	sim->context.timeInc(1);
}
}
