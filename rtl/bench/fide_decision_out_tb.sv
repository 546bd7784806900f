// SPDX-License-Identifier: Apache-2.0
// Decisions' stream: decisions of others out of their receive buffers and of this member's own out of its requests, of any length, while the
// host takes words or does not, and with stops. Byte by byte what was decided, in its order; a buffer or a request is given back once.
module fide_decision_out_tb;
`include "fide_bench.svh"
`include "fide_bench_frame.svh"

  localparam int unsigned MaxBeats = 4, Buffers = 6, Depth = 8;
  localparam int unsigned BeatW = $clog2(MaxBeats + 1) + 1, AddrW = $clog2(Buffers * MaxBeats);
  logic clear, decide_valid, free_valid, req_pop, tvalid, tready, tlast;
  fide_lowi_pkg::decide_t decide;
  logic [AddrW-1:0] addr;
  logic [511:0] buffer_data, req_data, tdata;
  logic [fide_lowi_pkg::BufW-1:0] free_buffer;
  logic [fide_lowi_pkg::LenW-1:0] req_len;
  logic [BeatW-1:0] req_beat;
  logic [63:0] tkeep;
  logic [3:0] tuser;
  fide_decision_out #(.MaxBeats(MaxBeats), .Buffers(Buffers), .Depth(Depth)) dut (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .decide_valid_i(decide_valid), .decide_i(decide),
    .buffer_addr_o(addr), .buffer_data_i(buffer_data), .free_valid_o(free_valid), .free_buffer_o(free_buffer),
    .req_len_i(req_len), .req_beat_o(req_beat), .req_data_i(req_data), .req_pop_o(req_pop),
    .m_axis_tvalid_o(tvalid), .m_axis_tready_i(tready), .m_axis_tdata_o(tdata), .m_axis_tkeep_o(tkeep), .m_axis_tlast_o(tlast),
    .m_axis_tuser_o(tuser)
  );

  // Buffers and requests hold other bytes each time they are used.
  logic [511:0] buffers [Buffers * MaxBeats];
  logic [512*MaxBeats-1:0] requests [$];
  logic [fide_lowi_pkg::LenW-1:0] lens [$];
  logic [Buffers-1:0] used;
  logic [511:0] own_word;
  // As out of a RAM: what is asked for at the edge comes behind it.
  always @(posedge clk) buffer_data <= buffers[addr];
  always @(posedge clk) begin
    own_word = '0;
    if (requests.size() != 0) own_word = requests[0][512*req_beat[1:0] +: 512];
    req_data <= own_word;
  end

  typedef struct packed {
    fide_lowi_pkg::decide_t is;
    logic [64*MaxBeats-1:0][7:0] want;
  } decision_t;
  decision_t waiting [$];
  int unsigned got = 0, own = 0, others = 0, stops = 0, most = 0;
  logic held, offered_last;
  logic [511:0] held_data;

  // The round's head as the wire has it, over the first bytes of a request.
  task automatic head(input fide_lowi_pkg::decide_t is);
    put(0, 8, is.round);
    put(8, 8, is.inst);
    put(16, 2, 64'd1);
    put(18, 2, 64'd0);
    put(20, 4, 64'(is.len) - 64'(fide_wire_pkg::ROUND_HEAD_LEN));
  endtask

  initial begin
    decision_t next;
    logic [MaxBeats-1:0][511:0] words;
    {clear, decide_valid, decide, tready, used, held} = '0;
    reset();
    for (int unsigned n = 0; n < 30_000; n++) begin
      {decide_valid, decide} = '0;
      clear = one_in(3_000);
      tready = !one_in(2 + (n / 3_000) % 5) || (n / 3_000) % 7 == 0;
      // Not more than it is built for, nor a buffer that is in use.
      if (waiting.size() < Depth && below(6) < 1 + (n / 5_000) % 5 && !clear) begin
        next.is.own = one_in(2);
        next.is.leader = 4'($urandom());
        next.is.round = draw64();
        next.is.inst = draw64();   // it is carried, and not counted, here
        next.is.buffer = 6'(below(Buffers));
        next.is.len = fide_lowi_pkg::LenW'(40 + 8 * below((64 * MaxBeats - 40) / 8 + 1));
        for (int unsigned i = 0; i < 8 * MaxBeats; i++) words[i/8][64*(i%8) +: 64] = draw64();
        next.want = words;
        if (next.is.own || !used[next.is.buffer[2:0]]) begin
          decide_valid = 1'b1;
          decide = next.is;
          if (next.is.own) begin
            requests.push_back(words);
            lens.push_back(next.is.len);
            decide.len = fide_lowi_pkg::LenW'($urandom());   // that of the request counts
            head(next.is);
            for (int unsigned i = 0; i < fide_wire_pkg::ROUND_HEAD_LEN; i++) next.want[i] = bytes[i];
          end else begin
            used[next.is.buffer[2:0]] = 1'b1;
            for (int unsigned w = 0; w < MaxBeats; w++) buffers[32'(next.is.buffer) * MaxBeats + w] = words[w];
          end
        end
      end
      req_len = '0;
      if (lens.size() != 0) req_len = lens[0];
      settle();
      if (!rst_n) held = 1'b0;
      `CHECK(!held || (tvalid && tdata == held_data && tlast == offered_last), "a word that waits stays as it is")
      `CHECK((free_valid || req_pop) == (tvalid && tready && tlast), "given back with the last word")
      if (tvalid) begin
        `CHECK(waiting.size() != 0, "a decision that nobody made")
        `CHECK(tuser == waiting[0].is.leader, "whose round it was")
        for (int unsigned i = 0; i < 64; i++) begin
          `CHECK(tkeep[i] == (got + i < 32'(waiting[0].is.len)), "as long as it is")
          if (tkeep[i]) `CHECK(tdata[8*i +: 8] == waiting[0].want[got + i], "byte by byte what was decided")
        end
        `CHECK(tlast == (got + 64 >= 32'(waiting[0].is.len)), "its last word is the last")
        if (tready && tlast) begin
          `CHECK(waiting[0].is.own ? req_pop : (free_valid && free_buffer == waiting[0].is.buffer), "its own is given back")
        end
      end
      held = tvalid && !tready && !clear;
      held_data = tdata;
      offered_last = tlast;
      begin
        logic took, ends, takes_in;
        took = tvalid && tready;
        ends = tlast;
        takes_in = decide_valid;
        tick();
        if (clear) begin
          waiting.delete();
          requests.delete();
          lens.delete();
          used = '0;
          got = 0;
          stops++;
        end else begin
          if (took) got += 64;
          if (took && ends) begin
            got = 0;
            if (waiting[0].is.own) begin
              void'(requests.pop_front());
              void'(lens.pop_front());
              own++;
            end else begin
              used[waiting[0].is.buffer[2:0]] = 1'b0;
              others++;
            end
            void'(waiting.pop_front());
          end
          if (takes_in) waiting.push_back(next);
        end
        if (waiting.size() > most) most = waiting.size();
      end
    end
    `CHECK(own > 1_000 && others > 1_000 && stops > 5 && most == Depth, "own ones and others', to the brim, and stops")
    $display("fide_decision_out: %0d of its own, %0d of others", own, others);
    done("fide_decision_out");
  end
endmodule
