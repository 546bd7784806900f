// SPDX-License-Identifier: Apache-2.0
// The engine with its probe taken apart, for the C shim. The streams here are 512 bits wide whatever the
// engine's are: of a narrower one only the low bits are used.
module fide_cosim_top #(
  parameter int unsigned Members  = 8,
  parameter int unsigned DataW    = 512,
  parameter int unsigned TagWords = 1
) (
  input  logic          clk_i,
  input  logic          rst_ni,
  input  logic [1:0]    rx_tvalid_i,
  input  logic [1023:0] rx_tdata_i,
  input  logic [127:0]  rx_tkeep_i,
  input  logic [1:0]    rx_tlast_i,
  input  logic [1:0]    rx_tuser_i,
  input  logic          req_tvalid_i,
  input  logic [511:0]  req_tdata_i,
  input  logic [63:0]   req_tkeep_i,
  input  logic          req_tlast_i,
  input  logic          req_tuser_i,
  output logic [1:0]    tx_tvalid_o,
  input  logic [1:0]    tx_tready_i,
  output logic [1023:0] tx_tdata_o,
  output logic [127:0]  tx_tkeep_o,
  output logic [1:0]    tx_tlast_o,
  output logic [9:0]    tx_tuser_o,
  output logic          dec_tvalid_o,
  input  logic          dec_tready_i,
  output logic [511:0]  dec_tdata_o,
  output logic [63:0]   dec_tkeep_o,
  output logic          dec_tlast_o,
  output logic [3:0]    dec_tuser_o,
  input  logic          awvalid_i,
  output logic          awready_o,
  input  logic [11:0]   awaddr_i,
  input  logic          wvalid_i,
  input  logic [31:0]   wdata_i,
  output logic          bvalid_o,
  input  logic          bready_i,
  output logic [1:0]    bresp_o,
  input  logic          arvalid_i,
  output logic          arready_o,
  input  logic [11:0]   araddr_i,
  output logic          rvalid_o,
  input  logic          rready_i,
  output logic [31:0]   rdata_o,
  output logic [1:0]    rresp_o,
  // Time that passes with this clock (ns).
  input  logic [31:0]   time_step_i,
  output logic [63:0]   time_o,
  output logic [63:0]   round_o,
  output logic [63:0]   next_o,
  output logic [63:0]   decided_o,
  output logic [31:0]   refused_o,
  output logic [15:0]   members_o,
  output logic [15:0]   crashed_o,
  output logic          running_o,
  output logic [2:0]    halted_o,
  output logic          has_leader_o,
  output logic [3:0]    leader_o,
  output logic          awaiting_o,
  output logic          heard_o,
  output logic          tells_exit_o,
  output logic          tells_ready_o,
  output logic [3:0]    ready_to_o,
  output logic          step_live_o,
  output logic          step_event_o,
  output logic          step_left_o,
  output logic [2:0]    event_o,
  output logic [2:0]    event_path_o,
  output logic          admit_o,
  output logic          judged_o,
  output logic          busy_o,
  output logic [2:0]    room_o,
  output logic [15:0]   width_o
);
  fide_lowi_pkg::state_t state;
  fide_lowi_pkg::ev_kind_e kind;
  logic unused_wready, unused;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) time_o <= '0;
    else time_o <= time_o + 64'(time_step_i);
  end
  localparam int unsigned KeepW = DataW / 8;
  logic [1:0][DataW-1:0] rx_data, tx_data;
  logic [1:0][KeepW-1:0] rx_keep, tx_keep;
  logic [DataW-1:0] dec_data;
  logic [KeepW-1:0] dec_keep;
  for (genvar i = 0; i < 2; i++) begin : gen_path
    assign rx_data[i] = rx_tdata_i[512*i +: DataW];
    assign rx_keep[i] = rx_tkeep_i[64*i +: KeepW];
    assign tx_tdata_o[512*i +: 512] = 512'(tx_data[i]);
    assign tx_tkeep_o[64*i +: 64] = 64'(tx_keep[i]);
  end
  assign dec_tdata_o = 512'(dec_data);
  assign dec_tkeep_o = 64'(dec_keep);
  assign width_o = 16'(DataW);
  fide_lowi_engine #(.Members(Members), .DataW(DataW), .TagWords(TagWords)) u_engine (
    .clk_i, .rst_ni,
    .s_axis_rx_tvalid_i(rx_tvalid_i), .s_axis_rx_tdata_i(rx_data), .s_axis_rx_tkeep_i(rx_keep),
    .s_axis_rx_tlast_i(rx_tlast_i), .s_axis_rx_tuser_i(rx_tuser_i),
    .s_axis_req_tvalid_i(req_tvalid_i), .s_axis_req_tdata_i(req_tdata_i[DataW-1:0]), .s_axis_req_tkeep_i(req_tkeep_i[KeepW-1:0]),
    .s_axis_req_tlast_i(req_tlast_i), .s_axis_req_tuser_i(req_tuser_i),
    .m_axis_tx_tvalid_o(tx_tvalid_o), .m_axis_tx_tready_i(tx_tready_i), .m_axis_tx_tdata_o(tx_data),
    .m_axis_tx_tkeep_o(tx_keep), .m_axis_tx_tlast_o(tx_tlast_o), .m_axis_tx_tuser_o(tx_tuser_o),
    .m_axis_dec_tvalid_o(dec_tvalid_o), .m_axis_dec_tready_i(dec_tready_i), .m_axis_dec_tdata_o(dec_data),
    .m_axis_dec_tkeep_o(dec_keep), .m_axis_dec_tlast_o(dec_tlast_o), .m_axis_dec_tuser_o(dec_tuser_o),
    .s_axil_awvalid_i(awvalid_i), .s_axil_awready_o(awready_o), .s_axil_awaddr_i(awaddr_i), .s_axil_wvalid_i(wvalid_i),
    .s_axil_wready_o(unused_wready), .s_axil_wdata_i(wdata_i), .s_axil_bvalid_o(bvalid_o), .s_axil_bready_i(bready_i),
    .s_axil_bresp_o(bresp_o), .s_axil_arvalid_i(arvalid_i), .s_axil_arready_o(arready_o), .s_axil_araddr_i(araddr_i),
    .s_axil_rvalid_o(rvalid_o), .s_axil_rready_i(rready_i), .s_axil_rdata_o(rdata_o), .s_axil_rresp_o(rresp_o),
    .time_i(time_o), .probe_o(state), .probe_event_o(kind), .probe_path_o(event_path_o), .probe_admit_o(admit_o), .probe_judged_o(judged_o), .probe_room_o(room_o), .probe_busy_o(busy_o)
  );
  assign round_o = state.round;
  assign next_o = state.next;
  assign decided_o = state.decided;
  assign refused_o = state.refused;
  assign members_o = state.members;
  assign crashed_o = state.crashed;
  assign running_o = state.running;
  assign halted_o = state.halted;
  assign has_leader_o = state.has_leader;
  assign leader_o = state.leader;
  assign awaiting_o = state.awaiting;
  assign heard_o = state.heard;
  assign tells_exit_o = state.tells_exit;
  assign tells_ready_o = state.tells_ready;
  assign ready_to_o = state.ready_to;
  assign step_live_o = state.step_live;
  assign step_event_o = state.step_event;
  assign step_left_o = state.step_left;
  assign event_o = kind;
  assign unused = ^{state, unused_wready, rx_tdata_i, rx_tkeep_i, req_tdata_i, req_tkeep_i};
endmodule
