// SPDX-License-Identifier: Apache-2.0
// A member of a LOWI group: frames of wire version 2 in and out on every path, requests in, decisions
// out, registers. docs/hardware.md has the diagram.
module fide_lowi_engine
#(
  parameter int unsigned Members  = 8,
  parameter int unsigned Paths    = 2,
  parameter int unsigned Flights  = 16,
  parameter int unsigned Window   = 8,
  parameter int unsigned Requests = 8,
  parameter int unsigned MaxBeats = 16,   // words of a round and its batch: 16 for a value of 984 bytes
  parameter int unsigned ClkNs    = 4,
  parameter int unsigned DataW    = 512,  // of all streams: 64, 128, 256 or 512
  parameter int unsigned TagWords = 1,    // 64-bit words of a frame hashed each clock; 0: no tags
  parameter int unsigned TagLanes = 4     // frames of one stream that are checked at the same time
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  // Frames (UDP payloads) that arrive, one stream per path; never held up.
  input  logic [Paths-1:0]        s_axis_rx_tvalid_i,
  input  logic [Paths-1:0][DataW-1:0]   s_axis_rx_tdata_i,
  input  logic [Paths-1:0][DataW/8-1:0] s_axis_rx_tkeep_i,
  input  logic [Paths-1:0]        s_axis_rx_tlast_i,
  input  logic [Paths-1:0]        s_axis_rx_tuser_i,

  // Requests: Forward frames, from the host or from other members; never held up.
  input  logic                    s_axis_req_tvalid_i,
  input  logic [DataW-1:0]        s_axis_req_tdata_i,
  input  logic [DataW/8-1:0]      s_axis_req_tkeep_i,
  input  logic                    s_axis_req_tlast_i,
  input  logic                    s_axis_req_tuser_i,

  // Frames that leave.
  output logic [Paths-1:0]        m_axis_tx_tvalid_o,
  input  logic [Paths-1:0]        m_axis_tx_tready_i,
  output logic [Paths-1:0][DataW-1:0]   m_axis_tx_tdata_o,
  output logic [Paths-1:0][DataW/8-1:0] m_axis_tx_tkeep_o,
  output logic [Paths-1:0]        m_axis_tx_tlast_o,
  output logic [Paths-1:0][fide_lowi_pkg::RankW:0] m_axis_tx_tuser_o,

  // Decisions.
  output logic                    m_axis_dec_tvalid_o,
  input  logic                    m_axis_dec_tready_i,
  output logic [DataW-1:0]        m_axis_dec_tdata_o,
  output logic [DataW/8-1:0]      m_axis_dec_tkeep_o,
  output logic                    m_axis_dec_tlast_o,
  output logic [fide_lowi_pkg::RankW-1:0] m_axis_dec_tuser_o,

  input  logic                    s_axil_awvalid_i,
  output logic                    s_axil_awready_o,
  input  logic [11:0]             s_axil_awaddr_i,
  input  logic                    s_axil_wvalid_i,
  output logic                    s_axil_wready_o,
  input  logic [31:0]             s_axil_wdata_i,
  output logic                    s_axil_bvalid_o,
  input  logic                    s_axil_bready_i,
  output logic [1:0]              s_axil_bresp_o,
  input  logic                    s_axil_arvalid_i,
  output logic                    s_axil_arready_o,
  input  logic [11:0]             s_axil_araddr_i,
  output logic                    s_axil_rvalid_o,
  input  logic                    s_axil_rready_i,
  output logic [31:0]             s_axil_rdata_o,
  output logic [1:0]              s_axil_rresp_o,

  // The NIC's clock in ns; the shell's, so that it can be that of its time stamps.
  input  logic [63:0]             time_i,
  // What the core does, for traces and co-simulation.
  output fide_lowi_pkg::state_t   probe_o,
  output fide_lowi_pkg::ev_kind_e probe_event_o,   // with probe_o.step_event
  output logic [fide_lowi_pkg::PathW-1:0] probe_path_o,
  output logic                    probe_judged_o,  // a frame of the requests' stream was admitted or not
  output logic                    probe_admit_o,   // a request was admitted
  output logic                    probe_busy_o,    // frames or events are in it, or a step is under way
  output logic [Paths:0]          probe_room_o     // a frame finds a lane: of each path, and of requests
);

  localparam int unsigned Buffers = Flights + 4;
  localparam int unsigned EvW = fide_lowi_pkg::EvW;
  localparam int unsigned BeatW = $clog2(MaxBeats + 1) + 1;
  localparam int unsigned AddrW = $clog2(Buffers * MaxBeats);

  if (DataW != 64 && DataW != 128 && DataW != 256 && DataW != 512) begin : gen_bad_width
    $fatal(1, "fide_lowi_engine: DataW is 64, 128, 256 or 512");
  end

`ifndef SYNTHESIS
  if (EvW != $bits(fide_lowi_pkg::ev_t)) begin : gen_bad_event
    $fatal(1, "fide_lowi_engine: EvW is not the width of ev_t");
  end
`endif

  fide_lowi_pkg::cfg_t cfg;
  fide_lowi_pkg::state_t state;
  logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_run, wait_start, wait_left;
  logic [511:0] base;
  logic [127:0] key;
  logic [Members-1:0][15:0] ids;
  logic [15:0] ids_valid;
  logic [31:0] retry_ns, rate_gap_ns;
  logic [7:0] rate_burst;
  logic clear, cmd_valid, cmd_ready;
  fide_lowi_pkg::ev_t cmd;

  // Frames in, with the verdict on their tags: paths, then requests.
  localparam int unsigned Streams = Paths + 1;
  logic [Streams-1:0] bus_valid, bus_last, bus_user, bus_idle;
  logic [Streams-1:0][DataW-1:0] bus_data;
  logic [Streams-1:0][DataW/8-1:0] bus_keep;
  logic [Streams-1:0] raw_valid, raw_last, raw_user, in_valid, in_last, in_user, in_tag_bad, tag_drop, tag_busy, tag_room;
  logic [Streams-1:0][511:0] raw_data, in_data;
  logic [Streams-1:0][63:0] raw_keep, in_keep;
  assign bus_valid = {s_axis_req_tvalid_i, s_axis_rx_tvalid_i};
  assign bus_last  = {s_axis_req_tlast_i, s_axis_rx_tlast_i};
  assign bus_user  = {s_axis_req_tuser_i, s_axis_rx_tuser_i};
  assign bus_data  = {s_axis_req_tdata_i, s_axis_rx_tdata_i};
  assign bus_keep  = {s_axis_req_tkeep_i, s_axis_rx_tkeep_i};
  // Lanes are counted when the frame before has reached them.
  assign probe_room_o = tag_room & bus_idle;
  for (genvar i = 0; i < int'(Streams); i++) begin : gen_tag
    fide_axis_widen #(.InW(DataW)) u_widen (
      .clk_i, .rst_ni, .s_axis_tvalid_i(bus_valid[i]), .s_axis_tdata_i(bus_data[i]), .s_axis_tkeep_i(bus_keep[i]),
      .s_axis_tlast_i(bus_last[i]), .s_axis_tuser_i(bus_user[i]),
      .m_axis_tvalid_o(raw_valid[i]), .m_axis_tdata_o(raw_data[i]), .m_axis_tkeep_o(raw_keep[i]),
      .m_axis_tlast_o(raw_last[i]), .m_axis_tuser_o(raw_user[i]), .idle_o(bus_idle[i])
    );
    if (TagWords == 0) begin : gen_none
      assign in_valid[i] = raw_valid[i];
      assign in_data[i] = raw_data[i];
      assign in_keep[i] = raw_keep[i];
      assign in_last[i] = raw_last[i];
      assign in_user[i] = raw_user[i];
      assign in_tag_bad[i] = 1'b0;
      assign tag_drop[i] = 1'b0;
      assign tag_busy[i] = 1'b0;
      assign tag_room[i] = 1'b1;
    end else begin : gen_check
      fide_tag_check #(.Lanes(TagLanes), .Words(TagWords)) u_check (
        .clk_i, .rst_ni, .key_i(key),
        .s_axis_tvalid_i(raw_valid[i]), .s_axis_tdata_i(raw_data[i]), .s_axis_tkeep_i(raw_keep[i]),
        .s_axis_tlast_i(raw_last[i]), .s_axis_tuser_i(raw_user[i]),
        .m_axis_tvalid_o(in_valid[i]), .m_axis_tdata_o(in_data[i]), .m_axis_tkeep_o(in_keep[i]),
        .m_axis_tlast_o(in_last[i]), .m_axis_tuser_o(in_user[i]), .tag_bad_o(in_tag_bad[i]),
        .room_o(tag_room[i]), .drop_o(tag_drop[i]), .busy_o(tag_busy[i])
      );
    end
  end

  logic [Paths-1:0] rx_valid, rx_full, rx_drop, ev_waits, ev_pop;
  logic [Paths-1:0][EvW-1:0] ev_head;
  logic [Paths-1:0][3:0] rx_why;
  logic store_valid;
  logic [AddrW-1:0] store_addr, dec_addr;
  logic [511:0] store_data, dec_data;
  logic [1:0] free_valid;
  logic [1:0][fide_lowi_pkg::BufW-1:0] free_buffer;

  for (genvar i = 0; i < int'(Paths); i++) begin : gen_rx
    logic valid;
    logic [AddrW-1:0] addr;
    logic [511:0] data;
    fide_lowi_pkg::ev_t parsed;
    fide_lowi_pkg::drop_e why;
    assign rx_why[i] = why;
    fide_rx_parser #(
      .Members(Members), .Path(i), .MaxBeats(MaxBeats), .Buffers(Buffers), .StoreBatch(i == 0), .IsRequest(1'b0)
    ) u_parser (
      .clk_i, .rst_ni, .clear_i(clear), .base_i(base), .ids_i(ids), .ids_valid_i(ids_valid), .me_i(cfg.me),
      .s_axis_tvalid_i(in_valid[i]), .s_axis_tdata_i(in_data[i]), .s_axis_tkeep_i(in_keep[i]),
      .s_axis_tlast_i(in_last[i]), .s_axis_tuser_i(in_user[i]), .tag_bad_i(in_tag_bad[i]),
      .store_valid_o(valid), .store_addr_o(addr), .store_data_o(data),
      .free_valid_i((i == 0) ? free_valid : 2'b00), .free_buffer_i(free_buffer),
      .ev_valid_o(rx_valid[i]), .ev_o(parsed), .ev_full_i(rx_full[i]),
      .drop_valid_o(rx_drop[i]), .drop_o(why)
    );
    logic [4:0] level;
    fide_fifo #(.Width(EvW), .Depth(16)) u_events (
      .clk_i, .rst_ni, .clear_i(clear), .push_i(rx_valid[i]), .data_i(parsed), .full_o(rx_full[i]),
      .valid_o(ev_waits[i]), .data_o(ev_head[i]), .pop_i(ev_pop[i]), .level_o(level)
    );
    logic unused_path;
    assign unused_path = ^{valid, addr, data, level};
    if (i == 0) begin : gen_store
      assign store_valid = valid;
      assign store_addr = addr;
      assign store_data = data;
    end
  end

  fide_ram #(.Width(512), .Depth(Buffers * MaxBeats)) u_batches (
    .clk_i, .we_i(store_valid), .waddr_i(store_addr), .wdata_i(store_data), .raddr_i(dec_addr), .rdata_o(dec_data)
  );

  // Commands first, then copies in turn. A frame that came before a stop is dropped with the rest.
  logic [Paths-1:0] grant, after;
  logic [Paths-1:0] turn_q;   // paths behind the one that was served last
  logic ev_valid, ev_ready;
  fide_lowi_pkg::ev_t ev;
  always_comb begin
    after = ev_waits & turn_q;
    if (after == '0) after = ev_waits;
    grant = after & (~after + 1'b1);
    ev = cmd;
    if (!cmd_valid) for (int unsigned i = 0; i < Paths; i++) if (grant[i]) ev = ev_head[i];
  end
  assign ev_valid  = cmd_valid || (ev_waits != '0);
  assign cmd_ready = ev_ready && cmd_valid;
  assign ev_pop    = (ev_ready && !cmd_valid) ? grant : '0;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) turn_q <= '0;
    else if (ev_pop != '0) turn_q <= ~(grant | (grant - 1'b1));
  end

  // Requests.
  logic req_done, req_drop, admit, req_full, allow, req_valid, req_barrier, req_pop, dec_pop, first_q, why_role;
  fide_lowi_pkg::ev_t req_ev;
  fide_lowi_pkg::drop_e req_why, admit_why;
  logic [fide_lowi_pkg::LenW-1:0] req_len, dec_len;
  logic [BeatW-1:0] req_beat, dec_beat;
  logic [511:0] req_data, own_data, req_word;
  logic unused_store_valid;
  logic [AddrW-1:0] unused_store_addr;
  fide_rx_parser #(
    .Members(Members), .Path(0), .MaxBeats(MaxBeats), .Buffers(Buffers), .StoreBatch(1'b0), .IsRequest(1'b1)
  ) u_requests (
    .clk_i, .rst_ni, .clear_i(clear), .base_i(base), .ids_i(ids), .ids_valid_i(ids_valid), .me_i(cfg.me),
    .s_axis_tvalid_i(in_valid[Paths]), .s_axis_tdata_i(in_data[Paths]), .s_axis_tkeep_i(in_keep[Paths]),
    .s_axis_tlast_i(in_last[Paths]), .s_axis_tuser_i(in_user[Paths]), .tag_bad_i(in_tag_bad[Paths]),
    .store_valid_o(unused_store_valid), .store_addr_o(unused_store_addr), .store_data_o(req_word),
    .free_valid_i(2'b00), .free_buffer_i('0),
    .ev_valid_o(req_done), .ev_o(req_ev), .ev_full_i(1'b0), .drop_valid_o(req_drop), .drop_o(req_why)
  );
  always_ff @(posedge clk_i) begin
    if (!rst_ni) first_q <= 1'b1;
    else if (in_valid[Paths]) first_q <= in_last[Paths];
  end
  assign why_role  = !(state.leads && |(state.members & fide_lowi_pkg::only(req_ev.rank)));
  assign admit     = req_done && !why_role && allow && !req_full;
  logic unused_req;
  assign unused_req = ^req_ev;
  assign admit_why = why_role ? fide_lowi_pkg::DropNotLeader : !allow ? fide_lowi_pkg::DropRate : fide_lowi_pkg::DropRoom;

  fide_rate_limiter u_rate (
    .clk_i, .rst_ni, .clear_i(clear), .time_i, .gap_ns_i(rate_gap_ns), .burst_i(rate_burst), .allow_o(allow), .take_i(admit)
  );

  // A word is written a clock after it came, when the end of the request before it is known.
  logic word_q, word_first_q;
  logic [511:0] word_data_q;
  always_ff @(posedge clk_i) begin
    word_q <= rst_ni && in_valid[Paths];
    word_first_q <= first_q;
    word_data_q <= req_word;
  end
  logic commit_q;
  logic [fide_lowi_pkg::LenW-1:0] commit_len_q;
  logic commit_barrier_q;
  always_ff @(posedge clk_i) begin
    commit_q <= rst_ni && admit && !clear;
    commit_len_q <= req_ev.len;
    commit_barrier_q <= req_ev.barrier;
  end

  fide_request_fifo #(.Depth(Requests), .MaxBeats(MaxBeats)) u_request_fifo (
    .clk_i, .rst_ni, .clear_i(clear),
    .s_valid_i(word_q), .s_first_i(word_first_q), .s_data_i(word_data_q),
    .commit_i(commit_q), .commit_len_i(commit_len_q), .commit_barrier_i(commit_barrier_q), .full_o(req_full),
    .req_valid_o(req_valid), .req_barrier_o(req_barrier), .req_len_o(req_len), .req_beat_i(req_beat), .req_data_o(req_data),
    .req_pop_i(req_pop),
    .dec_len_o(dec_len), .dec_beat_i(dec_beat), .dec_data_o(own_data), .dec_pop_i(dec_pop)
  );

  // The core and what it says.
  logic speak_valid, left, tx_busy, decide_valid;
  fide_lowi_pkg::speak_t speak;
  fide_lowi_pkg::decide_t decide;
  fide_lowi_core #(.Members(Members), .Paths(Paths), .Flights(Flights), .Window(Window), .ClkNs(ClkNs)) u_core (
    .clk_i, .rst_ni, .clear_i(clear), .time_i, .cfg_i(cfg),
    .wait_run_i(wait_run), .wait_start_i(wait_start), .wait_left_i(wait_left),
    .ev_valid_i(ev_valid), .ev_i(ev), .ev_ready_o(ev_ready),
    .req_valid_i(req_valid), .req_barrier_i(req_barrier),
    .speak_valid_o(speak_valid), .speak_o(speak), .left_i(left),
    .decide_valid_o(decide_valid), .decide_o(decide),
    .free_valid_o(free_valid[0]), .free_buffer_o(free_buffer[0]), .state_o(state)
  );

  logic [Paths-1:0] tx_valid, tx_ready, tx_last;
  logic [Paths-1:0][511:0] tx_data;
  logic [Paths-1:0][63:0] tx_keep;
  fide_tx_gen #(.Paths(Paths), .MaxBeats(MaxBeats), .FifoDepth(2 * MaxBeats), .TagWords(TagWords)) u_tx (
    .clk_i, .rst_ni, .clear_i(clear), .base_i(base), .key_i(key), .paths_i(cfg.paths), .time_i, .retry_ns_i(retry_ns),
    .speak_valid_i(speak_valid), .speak_i(speak), .busy_o(tx_busy), .left_o(left),
    .send_exit_i(state.tells_exit), .send_ready_i(state.tells_ready), .ready_to_i(state.ready_to),
    .req_len_i(req_len), .req_beat_o(req_beat), .req_data_i(req_data), .req_pop_o(req_pop),
    .m_axis_tvalid_o(tx_valid), .m_axis_tready_i(tx_ready), .m_axis_tdata_o(tx_data),
    .m_axis_tkeep_o(tx_keep), .m_axis_tlast_o(tx_last), .m_axis_tuser_o(m_axis_tx_tuser_o)
  );
  // A word of 512 bits stays with the generator until its last part was taken, so that a round has left
  // when its last byte has.
  for (genvar i = 0; i < int'(Paths); i++) begin : gen_tx
    fide_axis_narrow #(.OutW(DataW)) u_narrow (
      .clk_i, .rst_ni, .clear_i(1'b0),
      .s_axis_tvalid_i(tx_valid[i]), .s_axis_tready_o(tx_ready[i]), .s_axis_tdata_i(tx_data[i]),
      .s_axis_tkeep_i(tx_keep[i]), .s_axis_tlast_i(tx_last[i]),
      .m_axis_tvalid_o(m_axis_tx_tvalid_o[i]), .m_axis_tready_i(m_axis_tx_tready_i[i]), .m_axis_tdata_o(m_axis_tx_tdata_o[i]),
      .m_axis_tkeep_o(m_axis_tx_tkeep_o[i]), .m_axis_tlast_o(m_axis_tx_tlast_o[i])
    );
  end

  logic out_valid, out_ready, out_last;
  logic [511:0] out_data;
  logic [63:0] out_keep;
  fide_decision_out #(.MaxBeats(MaxBeats), .Buffers(Buffers), .Depth(32)) u_decisions (
    .clk_i, .rst_ni, .clear_i(clear), .decide_valid_i(decide_valid), .decide_i(decide),
    .buffer_addr_o(dec_addr), .buffer_data_i(dec_data), .free_valid_o(free_valid[1]), .free_buffer_o(free_buffer[1]),
    .req_len_i(dec_len), .req_beat_o(dec_beat), .req_data_i(own_data), .req_pop_o(dec_pop),
    .m_axis_tvalid_o(out_valid), .m_axis_tready_i(out_ready), .m_axis_tdata_o(out_data),
    .m_axis_tkeep_o(out_keep), .m_axis_tlast_o(out_last), .m_axis_tuser_o(m_axis_dec_tuser_o)
  );
  fide_axis_narrow #(.OutW(DataW)) u_dec_narrow (
    .clk_i, .rst_ni, .clear_i(clear),
    .s_axis_tvalid_i(out_valid), .s_axis_tready_o(out_ready), .s_axis_tdata_i(out_data), .s_axis_tkeep_i(out_keep),
    .s_axis_tlast_i(out_last),
    .m_axis_tvalid_o(m_axis_dec_tvalid_o), .m_axis_tready_i(m_axis_dec_tready_i), .m_axis_tdata_o(m_axis_dec_tdata_o),
    .m_axis_tkeep_o(m_axis_dec_tkeep_o), .m_axis_tlast_o(m_axis_dec_tlast_o)
  );

  // Frames dropped, by reason.
  logic [fide_lowi_pkg::Drops-1:0][2:0] drops;
  always_comb begin
    drops = '0;
    for (int unsigned i = 0; i < Paths; i++) if (rx_drop[i]) drops[rx_why[i]] = drops[rx_why[i]] + 3'd1;
    for (int unsigned i = 0; i < Streams; i++) if (tag_drop[i]) drops[fide_lowi_pkg::DropRoom] = drops[fide_lowi_pkg::DropRoom] + 3'd1;
    if (req_drop) drops[req_why] = drops[req_why] + 3'd1;
    if (req_done && !admit) drops[admit_why] = drops[admit_why] + 3'd1;
  end
  if (Paths > 2) begin : gen_bad_drops
    $fatal(1, "fide_lowi_engine: at most 7 frames are dropped in a clock: Paths is 1 or 2");
  end

  fide_regs #(.Members(Members), .Paths(Paths), .Window(Window), .ClkNs(ClkNs), .TagWords(TagWords)) u_regs (
    .clk_i, .rst_ni,
    .s_axil_awvalid_i, .s_axil_awready_o, .s_axil_awaddr_i, .s_axil_wvalid_i, .s_axil_wready_o, .s_axil_wdata_i,
    .s_axil_bvalid_o, .s_axil_bready_i, .s_axil_bresp_o, .s_axil_arvalid_i, .s_axil_arready_o, .s_axil_araddr_i,
    .s_axil_rvalid_o, .s_axil_rready_i, .s_axil_rdata_o, .s_axil_rresp_o,
    .time_i, .state_i(state), .drops_i(drops), .cfg_o(cfg),
    .wait_run_o(wait_run), .wait_start_o(wait_start), .wait_left_o(wait_left), .base_o(base), .key_o(key), .ids_o(ids),
    .ids_valid_o(ids_valid), .retry_ns_o(retry_ns), .rate_gap_ns_o(rate_gap_ns), .rate_burst_o(rate_burst),
    .clear_o(clear), .cmd_valid_o(cmd_valid), .cmd_o(cmd), .cmd_ready_i(cmd_ready)
  );

  assign probe_o       = state;
  assign probe_event_o = ev.kind;
  assign probe_path_o  = ev.path;
  logic judged_q;
  always_ff @(posedge clk_i) judged_q <= rst_ni && (req_done || req_drop);
  assign probe_busy_o = bus_idle != '1 || in_valid != '0 || tag_busy != '0 || tx_busy || ev_valid || m_axis_dec_tvalid_o ||
                        (state.running && !state.step_live) || state.step_left;
  assign probe_judged_o = judged_q;
  assign probe_admit_o = commit_q;

endmodule
